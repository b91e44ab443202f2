// Topology: a machine as a graph of processors, switches and links, and the paths between its devices. Also the rings
// and trees that collectives use on one or several machines.
//
// Everything is plain data from pure functions: the same input gives the same result on every rank. Rates are in GB/s
// (10^9 bytes per second) per direction; links are full duplex.
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
  kCore,   // a CPU core: ranks run on cores if a machine has no GPUs
  kCache,  // a cache that some cores of a NUMA node share
  kNic,
  kNet,       // a port of a NIC
  kNvSwitch,  // all NVSwitches of a machine, which act as one
};

struct TopoNode {
  TopoKind kind = TopoKind::kCpu;
  int index = 0;            // the file's numaid of a CPU, dev of a GPU, core or net; a running number for other kinds
  int parent = -1;          // its parent node in the file
  int sm = 0;               // GPU: compute capability; 0: unknown
  bool gdr = true;          // net: supports GPUDirect RDMA, that is, accesses GPU memory itself
  std::string name = {};    // "GPU 0", "net mlx5_0"
  std::string bus_id = {};  // PCI, GPU, NIC
};

enum class LinkKind : unsigned char { kNvLink, kPci, kMemory, kSys, kNet };

// One direction of a link. Links i and i ^ 1 are the two directions of the same link.
struct TopoLink {
  int from = 0, to = 0;
  LinkKind kind = LinkKind::kPci;
  double gbps = 0;
};

// One machine.
struct TopoSystem {
  std::string name;
  std::vector<TopoNode> nodes;
  std::vector<TopoLink> links;
  std::vector<int> devices;  // nodes that ranks run on: the GPUs; without GPUs the cores; without cores the CPUs
  std::vector<int> nets;
  std::string xml;  // in NCCL's format, with every attribute that was read
};

// Reads NCCL's topology XML. Throws kParse with the name, line and attribute.
TopoSystem parse_topology(std::string_view xml, const std::string& name, Here here = Here::at());
TopoSystem read_topology(const std::string& path, Here here = Here::at());
// The machine that runs this process, by hwloc; or the machine in the file SLIP_TOPO_FILE.
TopoSystem this_topology(Here here = Here::at());

// Distance between two nodes, nearest first, with NCCL's names.
enum class TopoPathType : unsigned char {
  kLoc,   // the same device
  kNvl,   // over NVLink
  kPix,   // through one PCI switch
  kPxb,   // through several PCI switches, but no CPU
  kPxn,   // over NVLink to a GPU near the NIC, which forwards
  kPhb,   // through a CPU's PCI host bridge or memory
  kSys,   // between CPUs
  kNet,   // to another machine
  kNone,  // no path
};
const char* topo_path_name(TopoPathType type);  // "PIX"

struct TopoPath {
  TopoPathType type = TopoPathType::kNone;
  double gbps = 0;         // of its slowest link
  std::vector<int> links;  // indices into TopoSystem::links, in order
  int proxy = -1;          // the GPU that forwards (PXN), or the CPU whose memory a NIC without GPUDirect uses
};

// The fastest of the shortest paths between all pairs of nodes.
class TopoPaths {
 public:
  // `relayed`: include PXN paths, where a GPU near a port forwards the data of other GPUs.
  explicit TopoPaths(const TopoSystem& system, bool relayed = true);
  TopoPath between(int from, int to) const;
  TopoPathType type(int from, int to) const { return at(from, to).type; }
  double gbps(int from, int to) const { return at(from, to).gbps; }

 private:
  struct Entry {
    double gbps = 0;
    int last_link = -1, proxy = -1;  // last_link: of the path
    TopoPathType type = TopoPathType::kNone;
  };
  Entry& at(int from, int to) {
    return entries_[static_cast<std::size_t>(from) * count_ + static_cast<std::size_t>(to)];
  }
  const Entry& at(int from, int to) const {
    return entries_[static_cast<std::size_t>(from) * count_ + static_cast<std::size_t>(to)];
  }
  void search_from(const TopoSystem& system, int source, const std::vector<std::vector<int>>& links_of);
  bool extend(int source, const TopoLink& link, int number, TopoPathType type);
  void pass_over_nvlink(const TopoSystem& system);
  void choose_proxy(const TopoSystem& system, int gpu, int net);
  void pass_through_memory(const TopoSystem& system);
  std::vector<Entry> entries_;
  std::vector<int> from_;  // by link: its source node
  std::size_t count_ = 0;
};

// Where a rank runs.
struct RankPlace {
  int node = 0;    // index into Cluster::nodes
  int device = 0;  // index into TopoSystem::devices; several ranks may share one
};
// Several machines with their ranks.
struct Cluster {
  std::vector<TopoSystem> nodes;
  std::vector<RankPlace> ranks;
};
Cluster cluster_of(const TopoSystem& system, int nodes);  // one rank per device, node by node

inline constexpr int kNoRank = -1;  // CommTree::parent of a root
// CommTree::parent: a network switch that reduces and multicasts (NCCL's CollNet).
inline constexpr int kSwitchRank = -2;

struct CommTree {
  std::vector<int> parent;  // by rank
  std::vector<std::vector<int>> children;
};

// One ring and its trees. Each channel carries one share of a call's data, along its ring or its trees.
struct CommChannel {
  std::vector<int> ring;        // ranks; each sends to the next one, the last to the first
  std::vector<CommTree> trees;  // with equal shares; if there are two, each rank is a leaf in one of them
  CommTree switch_tree;         // empty on one machine
  // By node: the nets (indices into TopoSystem::nets) through which the ring enters and leaves it; empty on one
  // machine. They differ only if ChannelLimits allows it. Trees use `nets` in both directions.
  std::vector<int> nets, nets_out;
};

enum class TreeShape : unsigned char { kChain, kBinary };  // of the tree within a machine

struct ChannelPlan {
  std::vector<CommChannel> channels;
  double ring_gbps = 0;    // rate at which each rank sends along the rings, over all channels
  double tree_gbps = 0;    // rate at which the trees reduce and broadcast, over all channels
  double switch_gbps = 0;  // the same through a reducing switch
  TopoPathType within = TopoPathType::kLoc,
               between = TopoPathType::kLoc;  // longest path used within and between machines
  TreeShape shape = TreeShape::kChain;
};

// Whether rings may leave a machine through another net than the one through which they enter it (NCCL_CROSS_NIC). They
// do so only if that is faster. kRails: a net reaches only nets of the same number on other machines.
enum class CrossNic : unsigned char { kNever, kRails, kAny };

struct ChannelLimits {
  int max_channels = 32;
  double max_gbps = 40;                   // of one channel: about the rate of one block of GPU threads
  CrossNic cross_nic = CrossNic::kNever;  // communicators use one net for each channel
};

ChannelPlan plan_channels(const Cluster& cluster, const ChannelLimits& limits = {}, Here here = Here::at());

// How the ranks of one node send to a rank of another node with one message. They pass their parts to `relay`, a rank
// near the net on the receiver's rail, which sends them as one message. If the net cannot access GPU memory, the data
// goes through CPU memory. Then relay and arrival are GPUs that do not share the net's PCI switch (see NicRelief).
struct RailRoute {
  int to = 0;     // the receiving rank
  int relay = 0;  // rank on the sending node
  int out_net = 0, in_net = 0;
  TopoPathType gather = TopoPathType::kLoc;  // longest path from a sender to the relay
  double gbps = 0;
  std::vector<int> senders;
  int arrival = 0;                             // rank on the receiving node that receives and forwards, or `to` itself
  bool spares_out = false, spares_in = false;  // relay, arrival: chosen to relieve the net's PCI switch
};
// Routes from `from_node` to all ranks of the other nodes.
std::vector<RailRoute> rail_routes(const Cluster& cluster, int from_node, Here here = Here::at());

// Relieves the path between a NIC and CPU memory. GPUs below the NIC's PCI switch send their data for the CPU over
// NVLink to other GPUs, which forward it.
struct NicRelief {
  struct Move {
    int from = 0, to = 0;  // indices into TopoSystem::devices
  };
  int net = 0;  // index into TopoSystem::nets
  std::vector<Move> moves;
  double gbps_before = 0, gbps_after = 0;  // through CPU memory and the net
};
std::vector<NicRelief> relieve_nics(const TopoSystem& system);  // one per net that becomes faster

}  // namespace slip
