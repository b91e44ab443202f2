#!/usr/bin/env python3
"""bars.py OUT [JSON] - what run.sh measured, held against the lines that must be reached:

    BAR area name ours peer ratio target ok|missed|skipped

then a table of all operations and sizes. Ratios with >= and > are how many times faster ours is; those with <= and <
are our time over the peer's or the limit's. JSON: the same as data. Exit status 1: something is missed.
What was measured beside busy cores (BUSY=1) is held against the best peer alone: at least as fast.
"""
import collections
import json
import math
import sys

from results import family, header, human, read, us

NAMES = {'allreduce_ip': 'all_reduce', 'reduce_scatter': 'reduce_scatter', 'bcast': 'broadcast',
         'allgather': 'all_gather', 'alltoall': 'all_to_all', 'sendrecv': 'sendrecv'}
REDUCING = ('allreduce_ip', 'reduce_scatter')
MOVING = ('bcast', 'allgather', 'alltoall', 'sendrecv')
KIB = 1 << 10

Best = collections.namedtuple('Best', 'us name')


def is_tuned(variant):
    """Not how the peer comes: malloc that keeps memory, a vectorised sum given by the user."""
    return any(word in ('keep', 'vec') for word in variant.replace('/', '+').split('+'))


class Results:
    def __init__(self, folder):
        self.points = read(folder)
        self.wrong = sorted(k for k, p in self.points.items() if not p.ok)

    def best(self, fam, op, ranks, size, accept):
        """The fastest point that `accept` takes; None if there is none."""
        found = [Best(p.med, ' '.join(filter(lambda word: word != '-', (k.lib, k.variant))))
                 for k, p in self.points.items()
                 if (k.op, k.ranks, k.size) == (op, ranks, size) and family(k.transport) == fam and p.ok and accept(k)]
        return min(found, default=None)

    def ours(self, *where):
        return self.best(*where, lambda k: k.lib == 'slip' and 'registered' not in k.variant)

    def registered(self, *where):
        return self.best(*where, lambda k: k.lib == 'slip' and 'registered' in k.variant)

    def peer(self, *where):
        return self.best(*where, lambda k: k.lib not in ('slip', 'limit'))

    def untuned_peer(self, *where):
        return self.best(*where, lambda k: k.lib not in ('slip', 'limit') and not is_tuned(k.variant))

    def limit(self, transport, *where):
        return self.best(*where, lambda k: k.lib == 'limit' and k.transport == transport)

    def sizes(self, fam, op, ranks):
        return sorted({k.size for k in self.points if (k.op, k.ranks) == (op, ranks) and family(k.transport) == fam})


class Bars:
    """Rows, printed as they come."""

    def __init__(self):
        self.rows = []

    def add(self, name, ours, peer, target):
        """`target`: '>=1.8', '<=1.3', '<1'."""
        sign, bound = target.rstrip('0123456789.'), float(target.lstrip('<>='))
        ratio, verdict = None, 'skipped'
        if ours and peer:
            ratio = peer.us / ours.us if sign[0] == '>' else ours.us / peer.us
            good = {'>=': ratio >= bound, '<=': ratio <= bound, '<': ratio < bound}[sign]
            verdict = 'ok' if good else 'missed'
        self.put(name, ours, peer, ratio, target, verdict)

    def put(self, name, ours, peer, ratio, target, verdict):
        # Rounded to the worse, so that no row looks better than it was judged.
        shown = '-'
        if ratio is not None:
            up = target[0] == '<'
            shown = f'{(math.ceil if up else math.floor)(ratio * 100 - (1e-9 if up else -1e-9)) / 100:.2f}x'
        row = ' '.join(['BAR collectives', name, time_text(ours), time_text(peer), shown, target + 'x', verdict])
        print(row)
        self.rows.append({'row': row, 'name': name, 'ours_us': ours and ours.us, 'peer_us': peer and peer.us,
                          'peer': peer and peer.name, 'ratio': ratio, 'target': target, 'verdict': verdict})

    def tally(self):
        count = collections.Counter(row['verdict'] for row in self.rows)
        return ', '.join(f'{count[word]} {word}' for word in ('ok', 'missed', 'skipped'))


def time_text(best):
    if best is None:
        return '-'
    if best.us < 1000:
        return f'{best.us:.3g}us' if best.us < 100 else f'{best.us:.0f}us'
    return f'{best.us / 1000:.1f}ms'


def reducing_bars(results, bars, ranks):
    for op in REDUCING:
        for size in results.sizes('shm', op, ranks):
            where = ('shm', op, ranks, size)
            ours, name = results.ours(*where), f'{NAMES[op]}_{ranks}_ranks_{human(size, "")}'
            if size < 512:
                if op == 'allreduce_ip':
                    bars.add(name + '_vs_peer', ours, results.peer(*where), '<=1.3')
                continue
            bars.add(name + '_vs_peer', ours, results.peer(*where), '<1')
            if size < 32 * KIB:
                continue
            bars.add(name + '_vs_peer_as_it_comes', ours, results.untuned_peer(*where), '>=1.8')
            bars.add(name + '_vs_peer_at_its_best', ours, results.peer(*where), '>=1.3')
            bars.add(name + '_vs_limit_copy', ours, results.limit('shm-copy', *where), '<=1.3')
            bars.add(name + '_registered_vs_limit', results.registered(*where), results.limit('shm', *where), '<=1.3')


def even_bars(results, bars, fam, ops, ranks):
    """No size slower than a peer, and faster on the whole."""
    for op in ops:
        name, gains = f'{NAMES[op]}_{ranks}_ranks' + ('_tcp' if fam == 'tcp' else ''), []
        for size in results.sizes(fam, op, ranks):
            if size < 4 * KIB:
                continue
            where = (fam, op, ranks, size)
            ours, peer = results.ours(*where), results.peer(*where)
            bars.add(f'{name}_{human(size, "")}_vs_peer', ours, peer, '<=1.05')
            if ours and peer:
                gains.append(peer.us / ours.us)
        mean = math.exp(sum(map(math.log, gains)) / len(gains)) if gains else None
        verdict = 'skipped' if mean is None else 'ok' if mean >= 1.1 else 'missed'
        bars.put(name + '_mean_vs_peer', None, None, mean, '>=1.1', verdict)


def busy_bars(results, bars, ranks):
    """Beside one busy process per core: no size slower than the best peer."""
    for fam in ('shm', 'tcp'):
        for op in REDUCING + MOVING:
            for size in results.sizes(fam, op, ranks):
                where = (fam, op, ranks, size)
                name = f'beside_busy_{NAMES[op]}_{ranks}_ranks' + ('_tcp' if fam == 'tcp' else '')
                bars.add(f'{name}_{human(size, "")}_vs_peer', results.ours(*where), results.peer(*where), '<=1')


def summary(results, ranks):
    """All operations and sizes, as a Markdown table."""
    heads = ['op', 'over', 'ranks', 'size', 'ours us', 'registered', 'best peer us', 'which', 'as it comes', 'which',
             'limit us', 'copy limit', 'ours/peer', 'ours/limit']
    yield '| ' + ' | '.join(heads) + ' |'
    yield '|---' * len(heads) + '|'
    for fam in ('shm', 'tcp'):
        for op in NAMES:
            for n in ranks:
                for size in results.sizes(fam, op, n):
                    where = (fam, op, n, size)
                    ours, peer, plain = results.ours(*where), results.peer(*where), results.untuned_peer(*where)
                    limit, copy = results.limit(fam, *where), results.limit('shm-copy', *where)
                    minimum = copy or limit
                    cells = [NAMES[op], fam, n, human(size), value(ours), value(results.registered(*where)), value(peer),
                             peer.name if peer else '-', value(plain), plain.name if plain else '-', value(limit),
                             value(copy), over(ours, peer), over(ours, minimum)]
                    yield '| ' + ' | '.join(map(str, cells)) + ' |'


def value(best):
    return us(best and best.us)


def over(ours, other):
    return f'{ours.us / other.us:.2f}' if ours and other else '-'


def main():
    folder, path = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    results, bars = Results(folder), Bars()
    ranks = sorted({k.ranks for k in results.points})
    busy = 'busy processes' in header(folder)
    for n in ranks:
        (busy_bars if busy else reducing_bars)(results, bars, n)
    for n in ranks if not busy else ():
        even_bars(results, bars, 'shm', MOVING, n)
        even_bars(results, bars, 'tcp', REDUCING + MOVING, n)
    for key in results.wrong:
        print(f'NOTE collectives wrong result, left out: {" ".join(map(str, key))}')
    if not busy and any(row['name'].endswith('registered_vs_limit') and row['ours_us'] is None for row in bars.rows):
        print('NOTE collectives registered buffers were not measured')
    table = list(summary(results, ranks))
    print('\n' + header(folder).replace('# ', '').rstrip() + '\n')
    print('\n'.join(table))
    reps = [p.reps for p in results.points.values()]
    print(f'\n{len(reps)} points of {min(reps, default=0)} to {max(reps, default=0)} repetitions; bars: {bars.tally()}')
    if path:
        with open(path, 'w') as file:
            json.dump({'header': header(folder), 'bars': bars.rows, 'table': table}, file, indent=1)
    ours_wrong = any(key.lib == 'slip' for key in results.wrong)
    sys.exit(1 if ours_wrong or any(row['verdict'] == 'missed' for row in bars.rows) else 0)


main()
