// Changes of a machine: one of its parts is broken or slow. Predictions for the changed machine show the effect.
//
// A part is "nic:2" (a NIC by the number that `slip topo` shows), "net:3" (a port by its device number), or a link:
// "link:PCI0" is the link from PCI switch 0 towards its CPU, "link:GPU0-NVS" the one between GPU 0 and the NVSwitch.
#pragma once

#include <string>
#include <string_view>

#include "slip/topology.hpp"

namespace slip::topo {

// The machine without the part. Throws kInvalidValue if it has no such part; the error lists the parts that it has.
TopoSystem without_part(TopoSystem system, std::string_view part, Here here = Here::at());
// The machine with the part at this share of its rate: more than 0 and less than 1.
TopoSystem with_slow_part(TopoSystem system, std::string_view part, double share, Here here = Here::at());

}  // namespace slip::topo
