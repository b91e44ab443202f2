// Topology: a machine as a graph of processors, switches and links, the paths between its devices, and the rings and
// trees that collectives use on one such machine or on several.
//
// All of it is plain data made by pure functions: the same input gives the same answer on every rank. Rates are in
// GB/s (10^9 bytes a second), each way: links carry both directions at once.
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
  int index = 0;            // numaid of a CPU, dev of a GPU, core or net; counted for the others
  int parent = -1;          // the node it hangs on in the file
  int sm = 0;               // GPU: compute capability, 0: unknown
  bool gdr = true;          // net: may read and write GPU memory itself
  std::string name = {};    // "GPU 0", "net mlx5_0"
  std::string bus_id = {};  // PCI, GPU, NIC
};

enum class LinkKind : unsigned char { kNvLink, kPci, kMemory, kSys, kNet };

// One direction. Link i and link i ^ 1 are the two directions of one wire.
struct TopoLink {
  int from = 0, to = 0;
  LinkKind kind = LinkKind::kPci;
  double gbps = 0;
};

struct System {
  std::string name;
  std::vector<TopoNode> nodes;
  std::vector<TopoLink> links;
  std::vector<int> devices;  // nodes that ranks run on: the GPUs; without any, the cores; without any, the CPUs
  std::vector<int> nets;
  std::string xml;  // NCCL's form, with every attribute that was read
};

// Reads NCCL's topology XML. Throws kParse with name, line and attribute.
System parse_topology(std::string_view xml, const std::string& name, Here here = Here::at());
System read_topology(const std::string& path, Here here = Here::at());
// The machine that this runs on, as hwloc sees it; or the file that SLIP_TOPO_FILE names.
System this_topology(Here here = Here::at());

// How far two nodes are apart, nearest first, as NCCL names it.
enum class PathType : unsigned char {
  kLoc,   // the same device
  kNvl,   // NVLink
  kPix,   // one PCI switch
  kPxb,   // several PCI switches, not the CPU
  kPxn,   // NVLink to the GPU beside the NIC
  kPhb,   // a CPU's own PCI bridge or memory
  kSys,   // from one CPU to another
  kNet,   // another machine
  kNone,  // no way
};
const char* path_name(PathType type);  // "PIX"

struct TopoPath {
  PathType type = PathType::kNone;
  double gbps = 0;         // of its narrowest link
  std::vector<int> links;  // of System::links, in order
  int proxy = -1;          // the GPU that passes the data on (PXN), or the CPU whose memory a NIC without gdr needs
};

// Widest of the shortest ways between all pairs of nodes.
class TopoPaths {
 public:
  // `relayed`: where a GPU beside a port passes on what others have for it (PXN), that way is counted.
  explicit TopoPaths(const System& system, bool relayed = true);
  TopoPath between(int from, int to) const;
  PathType type(int from, int to) const { return at(from, to).type; }
  double gbps(int from, int to) const { return at(from, to).gbps; }

 private:
  struct Entry {
    double gbps = 0;
    int last_link = -1, proxy = -1;  // the link that ends it
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
  std::vector<int> from_;  // of each link
  std::size_t count_ = 0;
};

// Several machines and where each rank runs.
struct RankPlace {
  int node = 0;
  int device = 0;  // of System::devices; several ranks may share one
};
struct Cluster {
  std::vector<System> nodes;
  std::vector<RankPlace> ranks;
};
Cluster cluster_of(const System& system, int nodes);  // one rank a device, node by node

inline constexpr int kNobody = -1;  // the parent of a root
inline constexpr int kSwitch = -2;  // the parent is a switch in the network, which reduces and multicasts

struct CommTree {
  std::vector<int> parent;  // by rank
  std::vector<std::vector<int>> children;
};

// A set of routes that moves one share of the data.
struct Channel {
  std::vector<int> ring;        // ranks; each sends to the next, the last to the first
  std::vector<CommTree> trees;  // each takes an equal share; where there are two, each rank is a leaf in one
  CommTree switch_tree;         // empty on one machine
  std::vector<int> nets;        // by node: which of System::nets it uses; empty on one machine
};

enum class TreeShape : unsigned char { kChain, kBinary };  // within a machine

struct ChannelPlan {
  std::vector<Channel> channels;
  double ring_gbps = 0;    // what each rank sends along the rings, all channels together
  double tree_gbps = 0;    // what the trees reduce and broadcast, all channels together
  double switch_gbps = 0;  // the same through a reducing switch
  PathType within = PathType::kLoc, between = PathType::kLoc;  // the longest paths in use
  TreeShape shape = TreeShape::kChain;
};

struct ChannelLimits {
  int max_channels = 32;
  double max_gbps = 40;  // of one channel: about what one block of GPU threads can move
};

ChannelPlan plan_channels(const Cluster& cluster, const ChannelLimits& limits = {}, Here here = Here::at());

// How ranks of one node reach a rank of another with one message: all hand their part to `relay`, which stands beside
// the net on the receiver's rail; it sends them as one. Where a net cannot reach the memory of GPUs, all goes through
// that of the CPU: there GPUs away from the net's switch send and take for all (see Relief).
struct RailRoute {
  int to = 0;     // rank
  int relay = 0;  // rank on the sending node
  int out_net = 0, in_net = 0;
  PathType gather = PathType::kLoc;  // the longest way to the relay
  double gbps = 0;
  std::vector<int> senders;
  int arrival = 0;                             // rank on the receiving node that takes it and hands it on, or `to`
  bool spares_out = false, spares_in = false;  // relay, arrival: chosen to spare the net's switch
};
// Routes from `from_node` to all ranks of other nodes.
std::vector<RailRoute> rail_routes(const Cluster& cluster, int from_node, Here here = Here::at());

// Keeps the way between a NIC and the CPU's memory free: what GPUs below the NIC's switch have for the CPU goes over
// NVLink to GPUs elsewhere first, which pass it on.
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
