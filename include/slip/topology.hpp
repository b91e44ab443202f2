// Topology: a machine as a graph of processors, switches and links; the paths between its devices; and the rings and
// trees that collectives use on one or several machines.
//
// Everything is plain data from pure functions: the same input gives the same result on every rank. Rates are in GB/s
// (10^9 bytes per second) for each direction; links carry both directions at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "slip/error.hpp"

namespace slip {

enum class TopoKind : unsigned char {
  kCpu,  // a NUMA node
  kPci,  // a PCI switch or bridge
  kGpu,
  kCore,   // where a rank runs on a machine without GPUs
  kCache,  // shared by a few cores of a NUMA node
  kNic,
  kNet,       // a port of a NIC
  kNvSwitch,  // all NVSwitches of a machine: they act as one
};

struct TopoNode {
  TopoKind kind = TopoKind::kCpu;
  int index = 0;            // numaid of a CPU, dev of a GPU, core or net; others are numbered in file order
  int parent = -1;          // the enclosing node in the file; -1: none
  int sm = 0;               // GPU: compute capability, 0: unknown
  bool gdr = true;          // net: can access GPU memory (GPUDirect RDMA)
  std::string name = {};    // "GPU 0", "net mlx5_0"
  std::string bus_id = {};  // PCI, GPU, NIC
};

enum class LinkKind : unsigned char { kNvLink, kPci, kMemory, kSys, kNet };

// One direction of a link. Links i and i ^ 1 are the two directions of the same wire.
struct TopoLink {
  int from = 0, to = 0;
  LinkKind kind = LinkKind::kPci;
  double gbps = 0;
};

struct System {
  std::string name;
  std::vector<TopoNode> nodes;
  std::vector<TopoLink> links;
  std::vector<int> devices;  // nodes that ranks run on: the GPUs; if there are none, the cores; if none, the CPUs
  std::vector<int> nets;
  std::string xml;  // in NCCL's format, with every attribute that was read
};

// Reads NCCL's topology XML. Throws kParse with name, line and attribute.
System parse_topology(std::string_view xml, const std::string& name, Here here = Here::at());
System read_topology(const std::string& path, Here here = Here::at());
// The topology of this machine: the file that SLIP_TOPO_FILE names, or what hwloc finds.
System this_topology(Here here = Here::at());

// The distance between two nodes, nearest first, by NCCL's names.
enum class PathType : unsigned char {
  kLoc,   // the same device
  kNvl,   // NVLink
  kPix,   // one PCI switch
  kPxb,   // several PCI switches, not the CPU
  kPxn,   // NVLink to the GPU beside the NIC
  kPhb,   // a CPU's own PCI bridge or memory
  kSys,   // from one CPU to another
  kNet,   // another machine
  kNone,  // no path
};
const char* path_name(PathType type);  // "PIX"

struct TopoPath {
  PathType type = PathType::kNone;
  double gbps = 0;         // the rate of its narrowest link
  std::vector<int> links;  // of System::links, in order
  int proxy = -1;  // the GPU that forwards the data (PXN), or the CPU whose memory a NIC without gdr uses; -1: none
};

// The paths between all pairs of nodes: the widest of those with the fewest hops.
class TopoPaths {
 public:
  // `relayed`: paths to a port may lead through a GPU beside it (PXN).
  explicit TopoPaths(const System& system, bool relayed = true);
  TopoPath between(int from, int to) const;
  PathType type(int from, int to) const { return at(from, to).type; }
  double gbps(int from, int to) const { return at(from, to).gbps; }

 private:
  struct Entry {
    double gbps = 0;
    int last_link = -1, proxy = -1;  // `last_link`: the last link of the path
    PathType type = PathType::kNone;
  };
  Entry& at(int from, int to) {
    return entries_[static_cast<std::size_t>(from) * count_ + static_cast<std::size_t>(to)];
  }
  const Entry& at(int from, int to) const {
    return entries_[static_cast<std::size_t>(from) * count_ + static_cast<std::size_t>(to)];
  }
  void search_from(const System& system, int source, const std::vector<std::vector<int>>& links_of);
  bool extend(int source, const TopoLink& link, int number, PathType type);
  void pass_over_nvlink(const System& system);
  void choose_proxy(const System& system, int gpu, int net);
  void pass_through_memory(const System& system);
  std::vector<Entry> entries_;
  std::vector<int> from_;  // the node where each link begins
  std::size_t count_ = 0;
};

// Several machines, and the device that each rank runs on.
struct RankPlace {
  int node = 0;
  int device = 0;  // of System::devices; several ranks may share one
};
struct Cluster {
  std::vector<System> nodes;
  std::vector<RankPlace> ranks;
};
Cluster cluster_of(const System& system, int nodes);  // equal nodes, with one rank for each device

inline constexpr int kNobody = -1;  // the parent of a root
inline constexpr int kSwitch = -2;  // the parent is a switch in the network, which reduces and multicasts

struct CommTree {
  std::vector<int> parent;  // by rank
  std::vector<std::vector<int>> children;
};

// A ring and trees that move one share of the data.
struct Channel {
  std::vector<int> ring;        // ranks; each sends to the next, the last to the first
  std::vector<CommTree> trees;  // each takes an equal share; if there are two, each rank is a leaf in one of them
  CommTree switch_tree;         // empty on one machine
  std::vector<int> nets;        // by node: the index in System::nets that it uses; empty on one machine
};

enum class TreeShape : unsigned char { kChain, kBinary };  // within a machine

struct ChannelPlan {
  std::vector<Channel> channels;
  double ring_gbps = 0;    // the rate of each rank along the rings, over all channels
  double tree_gbps = 0;    // the rate at which the trees reduce and broadcast, over all channels
  double switch_gbps = 0;  // the same through a reducing switch
  PathType within = PathType::kLoc, between = PathType::kLoc;  // the longest paths in use
  TreeShape shape = TreeShape::kChain;
};

struct ChannelLimits {
  int max_channels = 32;
  double max_gbps = 40;  // of one channel: about the rate of one block of GPU threads
};

ChannelPlan plan_channels(const Cluster& cluster, const ChannelLimits& limits = {}, Here here = Here::at());

// How the ranks of one node send to a rank of another node in one message: all hand their part to `relay`, the rank
// beside the net on the receiver's rail, and the relay sends all parts together. If a net cannot access GPU memory, the
// data goes through the CPU's memory; then GPUs on another switch than the net send and receive for all (see Relief).
struct RailRoute {
  int to = 0;     // rank
  int relay = 0;  // rank on the sending node
  int out_net = 0, in_net = 0;
  PathType gather = PathType::kLoc;  // the longest path to the relay
  double gbps = 0;
  std::vector<int> senders;
  int arrival = 0;  // the rank on the receiving node that receives the message and hands it on; or `to`
  bool spares_out = false, spares_in = false;  // relay or arrival was chosen to unload the net's switch
};
// Routes from `from_node` to all ranks of other nodes.
std::vector<RailRoute> rail_routes(const Cluster& cluster, int from_node, Here here = Here::at());

// Unloads the path between a NIC and the CPU's memory: GPUs on the switch of the NIC send their data for the CPU over
// NVLink to GPUs on other switches, which forward it.
struct Relief {
  struct Move {
    int from = 0, to = 0;  // of System::devices
  };
  int net = 0;  // of System::nets
  std::vector<Move> moves;
  double gbps_before = 0, gbps_after = 0;  // through the CPU's memory and the net
};
std::vector<Relief> relieve_nics(const System& system);  // one for each net that gains by it

}  // namespace slip
