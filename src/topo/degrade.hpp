// Machines with a broken or slow part, to see what it costs.
//
// A part is "nic:2" (a NIC by the number that `slip topo` shows), "net:3" (a port by its device number), or a link:
// "link:PCI0" is the link from PCI switch 0 towards its CPU, "link:GPU0-NVS" the one between GPU 0 and the NVSwitch.
#pragma once

#include <string>
#include <string_view>

#include "slip/topology.hpp"

namespace slip::topo {

// Without the part. Throws kInvalidValue if there is none, with the names of those that there are.
TopoSystem without_part(TopoSystem system, std::string_view part, Here here = Here::at());
// With this share of the part's rate, from 0 to 1, both excluded.
TopoSystem with_slow_part(TopoSystem system, std::string_view part, double share, Here here = Here::at());

}  // namespace slip::topo
