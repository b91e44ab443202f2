#!/usr/bin/env python3
"""libnccl.so.2 has NCCL's SONAME and exports NCCL 2.28.9's names: no other, none missing.

usage: check_exports.py LIBRARY
"""

import subprocess
import sys

# Each exists as a weak ncclX and as pncclX.
NAMES = """
AllGather AllReduce AlltoAll Bcast Broadcast CommAbort CommCount CommCuDevice CommDeregister CommDestroy CommFinalize
CommGetAsyncError CommInitAll CommInitRank CommInitRankConfig CommInitRankScalable CommRegister CommRevoke CommShrink
CommSplit CommUserRank CommWindowDeregister CommWindowRegister DevCommCreate DevCommDestroy Gather GetErrorString
GetLastError GetUniqueId GetVersion GinBarrierCreateRequirement GroupEnd GroupSimulateEnd GroupStart LLA2ACalcSlots
LLA2ACreateRequirement LsaBarrierCreateRequirement MemAlloc MemFree Recv RedOpCreatePreMulSum RedOpDestroy Reduce
ReduceScatter ResetDebugInit Scatter Send TeamLsa TeamRail TeamRankToLsa TeamRankToWorld TeamWorld
""".split()


def main():
    library = sys.argv[1]
    expected = {f"nccl{name}": "W" for name in NAMES} | {f"pnccl{name}": "T" for name in NAMES}
    expected["ncclResetDebugInitInternal"] = "T"
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    found = {fields[-1]: fields[-2] for fields in map(str.split, listed.splitlines())}
    faults = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    faults += [f"{name} is exported, too" for name in sorted(found.keys() - expected.keys())]
    faults += [f"{name} is '{found[name]}', not '{kind}'" for name, kind in sorted(expected.items())
               if found.get(name, kind) != kind]
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    if "soname: [libnccl.so.2]" not in dynamic:
        faults.append("the SONAME is not libnccl.so.2")
    if len(expected) != 105:
        faults.append(f"the list has {len(expected)} names, not 105")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
