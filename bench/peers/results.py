"""What run.sh measured: results.tsv as points.

A point's time is the median over repetitions of the repetition's median; min is the fastest sample of all repetitions;
spread is (slowest - fastest repetition median) / median.
"""
import collections
import os
import statistics

Point = collections.namedtuple('Point', 'med min spread actual ok reps')
Key = collections.namedtuple('Key', 'lib transport variant op ranks size')
OPS = ['allreduce', 'allreduce_ip', 'bcast', 'allgather', 'reduce_scatter', 'alltoall', 'sendrecv', 'pingpong', 'barrier']


def read(folder):
    """All points by their keys."""
    raw = collections.defaultdict(list)
    for line in open(os.path.join(folder, 'results.tsv')):
        f = line.rstrip('\n').split('\t')
        if len(f) != 15:
            continue  # cut short
        _, lib, tr, var, op, n, size, actual, med, mn, _, _, _, _, ok = f
        raw[Key(lib, tr, var, op, int(n), int(size))].append((float(med), float(mn), int(actual), ok))
    points = {}
    for key, v in raw.items():
        meds = [x[0] for x in v]
        m = statistics.median(meds)
        points[key] = Point(m, min(x[1] for x in v), (max(meds) - min(meds)) / m, v[0][2], all(x[3] == 'ok' for x in v),
                            len(v))
    return points


def header(folder):
    path = os.path.join(folder, 'header.txt')
    return open(path).read() if os.path.exists(path) else ''


def family(transport):
    return 'tcp' if transport.startswith('tcp') else 'shm'


def human(size, blank=' '):
    for shift, unit in ((20, 'MiB'), (10, 'KiB')):
        if size >= 1 << shift:
            return f'{size >> shift}{blank}{unit}'
    return f'{size}{blank}B'


def us(time):
    if time is None:
        return '-'
    return f'{time:.2f}' if time < 100 else f'{time:.0f}'
