"""The packet level with transport, as one loop over events: queues, pauses, credits, marks, rates.

Every directed link has one queue at its head, first in, first out, and one packet at a time on it.
Switches store a packet before they send it on. What a device sends of its own takes turns, packet
by packet, between connections and with what it passes on.

*pfc*      A switch counts what it holds of each link that enters it. Above `xoff` it pauses the
           sender, below `xon` it lets it go on; both take the link's latency, and the packet that
           is being sent is sent to its end (IEEE 802.1Qbb). Nothing is lost, and room for what is
           on its way (headroom) is taken as given; how much was held is said.
*credits*  A sender may send what has room behind the link; room comes back, after the link's
           latency, when the packet has left the switch there (InfiniBand).

ECN and DCQCN (Y. Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015,
Section 3): a queue marks a packet that joins it with a probability that rises from 0 at `kmin` to
`pmax` at `kmax`, and all above. A receiver of a marked packet sends a notice at most once in
`cnp_interval`; notices are not queued. At a notice the sender's target becomes its rate, its rate
falls by alpha / 2, and alpha rises by g. Without notices alpha falls by g in every `alpha_timer`,
and the rate rises at every `rate_timer` and every `byte_counter` sent: `stages` times half-way to
the target (fast recovery), then with a target that rises by `r_ai` (additive increase), and by
`r_hai` more each time when both counters are through (hyper increase).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline._jit import kernel, kernel_part
from ridgeline.network.multipath import hashed_way, is_way, mixed
from ridgeline.network.packet_queues import grown, grown_ints, pop_event, push_event
from ridgeline.network.paths import Ints
from ridgeline.network.topology import Floats

STATIC, ECMP, SPRAY, ADAPTIVE = 0, 1, 2, 3
NO_CONTROL, PFC, CREDITS = 0, 1, 2

_SENT, _ARRIVED, _PAUSE, _RESUME, _CREDIT, _READY, _NOTICE, _ALPHA, _RATE, _BEGIN = range(10)
_KINDS = 16
Flags = npt.NDArray[np.bool_]

# Numbers of a result, by place
PACKETS, MARKED, NOTICES, PAUSES = range(4)


@kernel
def play(  # noqa: PLR0915 - one loop over events, written out
    # the network
    out_ptr: Ints,
    target: Ints,
    bandwidth: Floats,
    latency_s: Floats,
    forwards: Flags,
    # the ways: tables of hops, and of static routing the links of every flow
    row: Ints,
    distance: npt.NDArray[np.int32],
    width: Floats,
    nominal: Floats,
    way_ptr: Ints,
    way_links: Ints,
    # the flows
    start: Ints,
    end: Ints,
    choice: Ints,
    begin_s: Floats,
    n_packets: Ints,
    payload: float,
    last_payload: Floats,
    header: float,
    # the transport
    routing: int,
    control: int,
    xoff: float,
    xon: float,
    buffer_bytes: float,
    dcqcn: bool,
    kmin: float,
    kmax: float,
    pmax: float,
    cnp_interval: float,
    g: float,
    alpha_timer: float,
    rate_timer: float,
    byte_counter: float,
    stages: int,
    r_ai: float,
    r_hai: float,
    seed: int,
    # the result
    done_s: Floats,
    counts: Ints,
    sent_bytes: Floats,
    paused_s: Floats,
    most_queued: Floats,
    most_held: Floats,
    bin_s: float,
    received: Floats,
) -> float:
    """Play flows to their end, or to a standstill; return the time."""
    n_flows, n_links = len(start), len(target)
    room_bytes = buffer_bytes + 1e-6  # sums of sizes are rounded
    # packets: those in the network, and a list of free places
    room = 4096
    pk_flow = np.empty(room, np.int64)
    pk_size = np.empty(room)
    pk_link = np.empty(room, np.int64)  # that it came over; -1: from its device
    pk_hop = np.empty(room, np.int64)
    pk_delay = np.empty(room)
    pk_last = np.empty(room, np.bool_)
    pk_mark = np.empty(room, np.bool_)
    pk_next = np.empty(room, np.int64)  # behind it in its queue, or in the list of free places
    for i in range(room):
        pk_next[i] = i + 1
    pk_next[room - 1] = -1
    free = 0
    # links: their queues, and rounds of the flows that begin there
    q_head = np.full(n_links, -1, np.int64)
    q_tail = np.full(n_links, -1, np.int64)
    queued = np.zeros(n_links)
    on_link = np.full(n_links, -1, np.int64)  # the packet that is being sent
    r_head = np.full(n_links, -1, np.int64)
    r_tail = np.full(n_links, -1, np.int64)
    own_turn = np.zeros(n_links, np.bool_)
    stopped = np.zeros(n_links, np.bool_)  # by a pause
    stopped_at = np.zeros(n_links)
    pausing = np.zeros(n_links, np.bool_)  # the switch behind it has asked for a pause
    held = np.zeros(n_links)  # bytes at the switch behind it that came over it
    taken = np.zeros(n_links)  # with credits: held, or on the way there
    # flows
    behind = np.full(n_flows, -1, np.int64)  # in the round
    sent = np.zeros(n_flows, np.int64)
    first_link = np.full(n_flows, -1, np.int64)  # of the next packet
    arrived = np.zeros(n_flows, np.int64)
    next_s = np.zeros(n_flows)
    turn = np.zeros(distance.shape[1], np.int64)  # of spraying, by vertex
    # DCQCN
    line = np.zeros(n_flows)
    rate = np.zeros(n_flows)
    aim = np.zeros(n_flows)
    alpha = np.ones(n_flows)
    noticed_s = np.full(n_flows, -np.inf)  # when its receiver sent the last notice
    in_control = np.zeros(n_flows, np.bool_)
    of_time = np.zeros(n_flows, np.int64)
    of_bytes = np.zeros(n_flows, np.int64)
    counted = np.zeros(n_flows)
    generation = np.zeros(n_flows, np.int64)
    # events
    times = np.empty(4096)
    what = np.empty(4096, np.int64)
    keys = np.empty(4096, np.int64)
    size = 0
    serial = 0
    drawn = 0
    left = n_flows
    now = 0.0
    for flow in range(n_flows):
        if size + 1 > len(times):
            times, what, keys = grown(times), grown_ints(what), grown_ints(keys)
        push_event(times, what, keys, size, begin_s[flow], _BEGIN + _KINDS * flow, serial)
        size += 1
        serial += 1
    timers = 0  # of DCQCN, among the events; where there is nothing else, nothing moves any more
    while size > timers and left > 0:
        now = times[0]
        event = what[0]
        size -= 1
        pop_event(times, what, keys, size)
        kind, thing = event % _KINDS, event // _KINDS
        timers -= kind in (_ALPHA, _RATE)
        if size + 8 > len(times):
            times, what, keys = grown(times), grown_ints(what), grown_ints(keys)
        look = -1  # a link that may be able to send now
        if kind == _SENT:
            link = thing
            packet = on_link[link]
            on_link[link] = -1
            push_event(
                times, what, keys, size, now + latency_s[link], _ARRIVED + _KINDS * packet, serial
            )
            size += 1
            serial += 1
            before = pk_link[packet]
            if before >= 0:  # it has left the switch
                held[before] -= pk_size[packet]
                if control == PFC and pausing[before] and held[before] < xon:
                    pausing[before] = False
                    push_event(
                        times, what, keys, size, now + latency_s[before],
                        _RESUME + _KINDS * before, serial,
                    )  # fmt: skip
                    size += 1
                    serial += 1
                elif control == CREDITS:
                    whose = 2 * pk_flow[packet] + pk_last[packet]  # which says its size
                    push_event(
                        times, what, keys, size, now + latency_s[before],
                        _CREDIT + _KINDS * (before + n_links * whose), serial,
                    )  # fmt: skip
                    size += 1
                    serial += 1
            pk_link[packet] = link
            look = link
        elif kind == _ARRIVED:
            packet = thing
            link, flow = pk_link[packet], pk_flow[packet]
            vertex = target[link]
            pk_delay[packet] += latency_s[link]
            if vertex == end[flow]:
                if control == CREDITS:
                    taken[link] -= pk_size[packet]  # a device takes in all that comes
                    look = link
                arrived[flow] += 1
                if bin_s > 0.0:
                    place = min(int(now / bin_s), received.shape[1] - 1)
                    got = last_payload[flow] if pk_last[packet] else payload
                    received[flow, place] += got
                if dcqcn and pk_mark[packet] and now - noticed_s[flow] >= cnp_interval:
                    noticed_s[flow] = now
                    counts[NOTICES] += 1
                    push_event(
                        times, what, keys, size, now + pk_delay[packet],
                        _NOTICE + _KINDS * flow, serial,
                    )  # fmt: skip
                    size += 1
                    serial += 1
                if arrived[flow] == n_packets[flow]:
                    done_s[flow] = now
                    left -= 1
                pk_next[packet] = free
                free = packet
            else:
                held[link] += pk_size[packet]
                most_held[link] = max(most_held[link], held[link])
                if control == PFC and not pausing[link] and held[link] > xoff:
                    pausing[link] = True
                    counts[PAUSES] += 1
                    push_event(
                        times, what, keys, size, now + latency_s[link], _PAUSE + _KINDS * link,
                        serial,
                    )  # fmt: skip
                    size += 1
                    serial += 1
                pk_hop[packet] += 1
                following = _way(
                    vertex, flow, pk_hop[packet], routing, out_ptr, target, bandwidth, nominal,
                    forwards, row[end[flow]], distance, width, way_ptr, way_links, choice, queued,
                    turn,
                )  # fmt: skip
                if dcqcn and queued[following] > kmin:
                    drawn += 1
                    chance = mixed(drawn ^ mixed(seed + 1)) / 4294967296.0
                    share = (queued[following] - kmin) / (kmax - kmin)
                    if queued[following] > kmax or chance < pmax * share:
                        if not pk_mark[packet]:
                            counts[MARKED] += 1
                        pk_mark[packet] = True
                pk_next[packet] = -1
                if q_head[following] == -1:
                    q_head[following] = packet
                else:
                    pk_next[q_tail[following]] = packet
                q_tail[following] = packet
                queued[following] += pk_size[packet]
                most_queued[following] = max(most_queued[following], queued[following])
                look = following
        elif kind == _PAUSE:
            if not stopped[thing]:
                stopped[thing] = True
                stopped_at[thing] = now
        elif kind == _RESUME:
            if stopped[thing]:
                stopped[thing] = False
                paused_s[thing] += now - stopped_at[thing]
            look = thing
        elif kind == _CREDIT:
            link = thing % n_links
            whose = thing // n_links
            taken[link] -= (last_payload[whose // 2] if whose % 2 == 1 else payload) + header
            look = link
        elif kind in (_BEGIN, _READY):
            flow = thing
            if kind == _BEGIN or routing >= SPRAY:
                first_link[flow] = _way(
                    start[flow], flow, 0, routing, out_ptr, target, bandwidth, nominal, forwards,
                    row[end[flow]], distance, width, way_ptr, way_links, choice, queued, turn,
                )  # fmt: skip
            link = first_link[flow]
            if kind == _BEGIN:
                line[flow] = bandwidth[link]
                rate[flow] = line[flow]
                aim[flow] = line[flow]
            behind[flow] = -1
            if r_head[link] == -1:
                r_head[link] = flow
            else:
                behind[r_tail[link]] = flow
            r_tail[link] = flow
            if routing >= SPRAY:
                queued[link] += payload + header  # what waits for its turn is a queue, too
            look = link
        elif kind == _NOTICE:
            flow = thing
            if sent[flow] < n_packets[flow]:
                aim[flow] = rate[flow]
                rate[flow] *= 1.0 - alpha[flow] / 2.0
                alpha[flow] = (1.0 - g) * alpha[flow] + g
                of_time[flow] = 0
                of_bytes[flow] = 0
                counted[flow] = 0.0
                in_control[flow] = True
                generation[flow] += 1
                stamp = flow + n_flows * generation[flow]
                push_event(
                    times, what, keys, size, now + alpha_timer, _ALPHA + _KINDS * stamp, serial
                )
                size += 1
                serial += 1
                push_event(
                    times, what, keys, size, now + rate_timer, _RATE + _KINDS * stamp, serial
                )
                size += 1
                serial += 1
                timers += 2
        else:  # a timer of DCQCN
            flow = thing % n_flows
            current = thing // n_flows == generation[flow] and in_control[flow]
            if current and sent[flow] < n_packets[flow]:
                again = alpha_timer
                if kind == _ALPHA:
                    alpha[flow] *= 1.0 - g
                else:
                    again = rate_timer
                    of_time[flow] += 1
                    _rise(flow, of_time[flow], of_bytes[flow], stages, r_ai, r_hai, rate, aim, line)
                push_event(times, what, keys, size, now + again, event, serial)
                size += 1
                serial += 1
                timers += 1
        if look < 0 or on_link[look] >= 0 or stopped[look]:
            continue
        # --- what does the link send?
        link = look
        flow = r_head[link]
        packet = q_head[link]
        own = flow >= 0 and (packet < 0 or own_turn[link])
        if not own and packet < 0:
            continue
        if own:
            last = sent[flow] + 1 == n_packets[flow]
            length = (last_payload[flow] if last else payload) + header
        else:
            length = pk_size[packet]
        if control == CREDITS and taken[link] + length > room_bytes:
            if not own or packet < 0:
                continue
            own = False  # the other may be shorter
            length = pk_size[packet]
            if taken[link] + length > room_bytes:
                continue
        own_turn[link] = not own
        if own:
            last = sent[flow] + 1 == n_packets[flow]
            r_head[link] = behind[flow]
            if r_head[link] == -1:
                r_tail[link] = -1
            if routing >= SPRAY:
                queued[link] -= payload + header
            if free == -1:
                old = len(pk_next)
                pk_flow, pk_link = grown_ints(pk_flow), grown_ints(pk_link)
                pk_hop, pk_next = grown_ints(pk_hop), grown_ints(pk_next)
                pk_size, pk_delay = grown(pk_size), grown(pk_delay)
                more = np.empty(2 * old, np.bool_)
                more[:old] = pk_last
                pk_last = more
                marks = np.empty(2 * old, np.bool_)
                marks[:old] = pk_mark
                pk_mark = marks
                for i in range(old, 2 * old):
                    pk_next[i] = i + 1
                pk_next[2 * old - 1] = -1
                free = old
            packet = free
            free = pk_next[packet]
            pk_flow[packet] = flow
            pk_size[packet] = length
            pk_link[packet] = -1
            pk_hop[packet] = 0
            pk_delay[packet] = 0.0
            pk_last[packet] = last
            pk_mark[packet] = False
            sent[flow] += 1
            counts[PACKETS] += 1
            if not last:
                next_s[flow] = max(now, next_s[flow]) + length / rate[flow]
                # what goes at the line's rate is held back by the line alone
                ready = next_s[flow] if rate[flow] < line[flow] else now
                push_event(times, what, keys, size, ready, _READY + _KINDS * flow, serial)
                size += 1
                serial += 1
            if in_control[flow]:
                counted[flow] += length
                if counted[flow] >= byte_counter:
                    counted[flow] -= byte_counter
                    of_bytes[flow] += 1
                    _rise(flow, of_time[flow], of_bytes[flow], stages, r_ai, r_hai, rate, aim, line)
        else:
            q_head[link] = pk_next[packet]
            if q_head[link] == -1:
                q_tail[link] = -1
            queued[link] -= length
        if control == CREDITS:
            taken[link] += length
        sent_bytes[link] += length
        on_link[link] = packet
        push_event(
            times, what, keys, size, now + length / bandwidth[link], _SENT + _KINDS * link, serial
        )
        size += 1
        serial += 1
    for link in range(n_links):
        if stopped[link]:
            paused_s[link] += now - stopped_at[link]
    return now


@kernel_part
def _rise(
    flow: int,
    of_time: int,
    of_bytes: int,
    stages: int,
    r_ai: float,
    r_hai: float,
    rate: Floats,
    aim: Floats,
    line: Floats,
) -> None:
    """Raise a sender's rate after one of its counters has moved on."""
    if min(of_time, of_bytes) > stages:
        aim[flow] += r_hai * (min(of_time, of_bytes) - stages)
    elif max(of_time, of_bytes) > stages:
        aim[flow] += r_ai
    aim[flow] = min(aim[flow], line[flow])
    rate[flow] = min(0.5 * (rate[flow] + aim[flow]), line[flow])


@kernel_part
def _way(
    vertex: int,
    flow: int,
    hop: int,
    routing: int,
    out_ptr: Ints,
    target: Ints,
    bandwidth: Floats,
    nominal: Floats,
    forwards: Flags,
    row: int,
    distance: npt.NDArray[np.int32],
    width: Floats,
    way_ptr: Ints,
    way_links: Ints,
    choice: Ints,
    queued: Floats,
    turn: Ints,
) -> int:
    """Return the link that a packet of a flow leaves a vertex by."""
    if routing == STATIC:
        static: int = way_links[way_ptr[flow] + hop]
        return static
    if routing == ECMP:
        return hashed_way(
            choice[flow], vertex, row, out_ptr, target, distance, width, forwards, nominal
        )
    first, last = out_ptr[vertex], out_ptr[vertex + 1]
    count = 0
    for link in range(first, last):
        count += is_way(link, vertex, target[link], row, distance, width, forwards, nominal)
    # drawn, not in turn: connections that come in turn would each keep to one of the links
    skip = mixed(turn[vertex] ^ mixed(choice[flow] + vertex)) % count
    turn[vertex] += 1
    best, least = -1, np.inf
    for step in range(2):  # from the one whose turn it is to the last, and on from the first
        place = 0
        for link in range(first, last):
            if not is_way(link, vertex, target[link], row, distance, width, forwards, nominal):
                continue
            if (place >= skip) == (step == 0):
                if routing == SPRAY:
                    return link
                if queued[link] / bandwidth[link] < least:
                    best, least = link, queued[link] / bandwidth[link]
            place += 1
    return best
