// Search runs in a worker, which browsers do not start for pages that are opened from a folder.
// There it runs in a hidden frame, which has the same way of passing messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inside = new Promise((loaded) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => {
            setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
          };
          const script = inside.document.createElement("script");
          script.src = new URL(address, location.href).href;
          script.addEventListener("load", () => loaded(inside));
          inside.document.head.append(script);
        }, { once: true });
      });
      document.body.append(frame);
    }
    postMessage(data) {
      this.inside.then((inside) => {
        inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      });
    }
  };
}
