// The model of GPU costs: its errors on published tables, fits, folding, and what it refuses.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/sim/fit_costs.hpp"
#include "comm/sim/predict.hpp"
#include "support/errors.hpp"
#include "topo/document.hpp"

namespace slip::test_tables {
namespace {

using comm::Collective;
using comm::CollectiveModel;
using comm::GpuAlgorithm;
using comm::ModelInputs;

std::string machine(const std::string& name) { return SLIP_SOURCE_DIR "/bench/predict/machines/" + name; }

ModelInputs inputs_for(const std::string& file, int copies, int max_copies = topo::kMaxCopies) {
  const topo::FoldedCluster cluster = topo::folded({read_topology(machine(file))}, copies, max_copies);
  return comm::model_inputs(cluster, plan_channels(cluster.cluster));
}

struct Table {
  std::string name;
  ModelInputs inputs;
  std::vector<comm::Measurement> rows;
};

std::vector<Table> published() {
  std::ifstream file(SLIP_SOURCE_DIR "/bench/predict/tables.json");
  std::vector<Table> result;
  for (const nlohmann::json& table : nlohmann::json::parse(file)) {
    Table one{table.at("name"), inputs_for(table.at("file"), table.at("nodes")), {}};
    one.rows = comm::parse_measurements(table.dump(), "tables.json", "");
    if (table.contains("network")) one.inputs.network = *comm::find_network(table.at("network").get<std::string>());
    result.push_back(std::move(one));
  }
  return result;
}

TEST(CostModel, DefaultConstantsAreNearPublishedTables) {
  double mean = 0;
  const std::vector<Table> tables = published();
  for (const Table& table : tables) {
    const double error = comm::errors_of(CollectiveModel(table.inputs), Collective::kAllReduce, table.rows).mean;
    EXPECT_LT(error, 0.25) << table.name;
    mean += error / static_cast<double>(tables.size());
  }
  EXPECT_LE(mean, 0.15);
}

TEST(CostModel, AFitPredictsTheSizesThatItHasNotSeen) {
  double mean = 0;
  const std::vector<Table> tables = published();
  for (const Table& table : tables) {
    const comm::Fit fit = comm::fit_costs(table.inputs, Collective::kAllReduce, table.rows);
    EXPECT_LE(fit.left_out.mean, 0.15) << table.name;
    EXPECT_LE(fit.after.mean, fit.before.mean + 1e-9) << table.name;
    mean += fit.left_out.mean / static_cast<double>(tables.size());
  }
  EXPECT_LE(mean, 0.08);
}

// The times of a machine that is twice as slow in everything lead to factors of two.
TEST(CostModel, AFitFindsTheFactorsOfATable) {
  const ModelInputs inputs = inputs_for("h100x8_8x400g.xml", 2);
  const comm::CostFactors slow{.latency = {2, 2, 2}, .rate = {0.5, 0.5, 0.5}};
  const CollectiveModel real(inputs, slow);
  std::vector<comm::Measurement> rows;
  for (double bytes = 1024; bytes < 4e9; bytes *= 2)
    rows.push_back({bytes, real.choice(Collective::kAllReduce, bytes).us});
  const comm::Fit fit = comm::fit_costs(inputs, Collective::kAllReduce, rows);
  EXPECT_LT(fit.left_out.mean, 0.03);
  EXPECT_NEAR(fit.factors.latency[0], 2, 0.2);
  EXPECT_NEAR(fit.factors.rate[2], 0.5, 0.05);
}

// A log with several runs has each size several times. A size that is left out must be left out in all of them.
TEST(CostModel, RowsOfTheSameSizeCountOnce) {
  const Table table = published().front();
  std::vector<comm::Measurement> twice = table.rows;
  twice.insert(twice.end(), table.rows.begin(), table.rows.end());
  const comm::Fit fit = comm::fit_costs(table.inputs, Collective::kAllReduce, table.rows),
                  same = comm::fit_costs(table.inputs, Collective::kAllReduce, twice);
  EXPECT_EQ(same.rows_left_out, fit.rows_left_out);
  EXPECT_DOUBLE_EQ(same.left_out.mean, fit.left_out.mean);
  const std::vector<comm::Measurement> one_size(20, {1 << 20, 100});
  EXPECT_TRUE(test::fails([&] { comm::fit_costs(table.inputs, Collective::kAllReduce, one_size); },
                          ErrorCode::kInvalidValue, {"different sizes", "there are 1"}));
}

// Times that are scattered by a factor of 30: the fit may not be worse than no fit.
TEST(CostModel, AFitIsNeverWorseThanTheDefaults) {
  for (const Table& table : published()) {
    for (std::size_t period = 2; period < 6; ++period) {
      std::vector<comm::Measurement> rows = table.rows;
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i].us *= i * i % period == 1 ? 30 : 1;
      const comm::Fit fit = comm::fit_costs(table.inputs, Collective::kAllReduce, rows);
      EXPECT_LE(fit.after.mean, fit.before.mean) << table.name << ", " << period;
    }
  }
}

// Folded: 8 machines stand for all. Unfolded: every machine is planned.
TEST(CostModel, FoldedAndUnfoldedAreEqual) {
  for (const char* file : {"h100x8_8x400g.xml", "a100x8_4x100g_efa.xml", "a100x8_16x100g.xml"}) {
    for (const int copies : {9, 10, 13, 16}) {
      const CollectiveModel folded(inputs_for(file, copies)), whole(inputs_for(file, copies, copies));
      for (const Collective kind : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                    Collective::kAllToAll, Collective::kBroadcast}) {
        for (const GpuAlgorithm algorithm : comm::kGpuAlgorithms) {
          for (const double bytes : {4096.0, 1048576.0, 1073741824.0}) {
            const auto a = folded.estimate(algorithm, kind, bytes), b = whole.estimate(algorithm, kind, bytes);
            ASSERT_EQ(a.has_value(), b.has_value());
            if (!a) continue;
            EXPECT_NEAR(a->us, b->us, 1e-6 * b->us) << file << " x" << copies << ", " << comm::collective_name(kind)
                                                    << " by " << comm::gpu_algorithm_name(algorithm);
            EXPECT_EQ(a->protocol, b->protocol);
          }
        }
      }
    }
  }
}

// Where only links cost time, model and simulation take the same times.
TEST(CostModel, AgreesWithTheSimulationWhereOnlyLinksCount) {
  for (const int machines : {1, 2}) {
    const Cluster cluster = cluster_of(read_topology(machine("a100x8_8x200g.xml")), machines);
    const ChannelPlan plan = plan_channels(cluster);
    ModelInputs inputs = inputs_for("a100x8_8x200g.xml", machines);
    inputs.gpu.launch_us = inputs.gpu.hop_us[2] = inputs.network.latency_us = inputs.network.message_us = 0;
    inputs.gpu.ring_share = inputs.network.rate_share = 1;
    const double bytes = 1 << 30;
    comm::PredictionRequest asked;
    asked.call = {.kind = Collective::kAllReduce, .type = DataType::kF32, .elements = (1 << 30) / 4};
    asked.costs = {.latency_us = 0, .net_latency_us = 0, .memory_gbps = 1e6};
    const double simulated = comm::predict(cluster, plan, asked).us;
    const double modelled = CollectiveModel(inputs).estimate(GpuAlgorithm::kRing, Collective::kAllReduce, bytes)->us;
    EXPECT_NEAR(modelled, simulated, 0.03 * simulated) << machines;
    asked.algorithm = Algorithm::kTree;
    const double by_tree = comm::predict(cluster, plan, asked).us, planned = bytes / plan.tree_gbps / 1e3;
    EXPECT_NEAR(planned, by_tree, 0.05 * by_tree) << machines;
  }
}

TEST(CostModel, AHundredThousandRanks) {
  double before = 0;
  for (const int machines : {1, 16, 128, 2048, 12500}) {
    const CollectiveModel model(inputs_for("h100x8_8x400g.xml", machines));
    EXPECT_EQ(model.inputs().ranks, machines * 8);
    const double us = model.choice(Collective::kAllReduce, 1 << 30).us;
    EXPECT_GT(us, before);
    before = us;
  }
  EXPECT_LT(before, 1e6);
}

// An NVSwitch that reduces wins for large data on Hopper, and does not exist on Ampere.
TEST(CostModel, ChoosesAsATuningModelWould) {
  const CollectiveModel hopper(inputs_for("h100x8_8x400g.xml", 1)), ampere(inputs_for("a100x8_8x200g.xml", 1));
  EXPECT_EQ(hopper.choice(Collective::kAllReduce, 1 << 30).algorithm, GpuAlgorithm::kNvls);
  EXPECT_EQ(hopper.choice(Collective::kAllReduce, 1024).protocol, comm::Protocol::kLl);
  EXPECT_FALSE(ampere.estimate(GpuAlgorithm::kNvls, Collective::kAllReduce, 1024).has_value());
  EXPECT_EQ(ampere.choice(Collective::kAllReduce, 1 << 30).protocol, comm::Protocol::kSimple);
  // Two machines: data crosses the network once in a tree, and twice in a ring.
  const CollectiveModel two(inputs_for("a100x8_4x100g_efa.xml", 2));
  EXPECT_EQ(two.choice(Collective::kAllReduce, 1 << 30).algorithm, GpuAlgorithm::kTree);
  EXPECT_STREQ(two.inputs().network.name, "efa");
}

TEST(CostModel, ReadsTextOfAllReducePerf) {
  const std::string text =
      "# nThread 1 nGpus 8 minBytes 8\n"
      "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw\n"
      "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
      "           8             2     float     sum      -1    36.47    0.00    0.00      0    36.11    0.00    0.00\n"
      "node0: NCCL INFO something with many words in a line of its own\n"
      "     1048576        262144     float     sum      -1    85.58   12.25   22.97      0    84.01   12.48   23.40\n";
  const std::vector<comm::Measurement> rows = comm::parse_measurements(text, "t", "");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_DOUBLE_EQ(rows[1].bytes, 1048576);
  EXPECT_DOUBLE_EQ(rows[1].us, 85.58);
  // Old versions have no column for the root.
  const std::string old =
      "#  size  count  type  redop  time  algbw  busbw  error\n"
      "  1024  256  float  sum  12.5  0.08  0.14  0e+00\n";
  EXPECT_DOUBLE_EQ(comm::parse_measurements(old, "t", "").at(0).us, 12.5);
  // The rows only, without the heading.
  const std::string alone = old.substr(old.find('\n') + 1);
  EXPECT_DOUBLE_EQ(comm::parse_measurements(alone, "t", "").at(0).us, 12.5);
  EXPECT_DOUBLE_EQ(comm::parse_measurements("8 2 float sum -1 36.47 0.00 0.00 0\n", "t", "").at(0).us, 36.47);
  // A launcher wrote the rank before each line, and a logger the ends of lines as on Windows.
  const std::string launched =
      "[1,0]<stdout>:#  size  count  type  redop  time  algbw  busbw  error\r\n"
      "[1,0]<stdout>:  1024  256  float  sum  12.5  0.08  0.14  0e+00\r\n"
      "[1,0]<stdout>: buffer size 12 in time 7 us, 3 4 times in all\r\n"
      "worker-0: 2048  512  float  sum  13.5  0.08  0.14  0e+00\r\n";
  const std::vector<comm::Measurement> tagged = comm::parse_measurements(launched, "t", "");
  ASSERT_EQ(tagged.size(), 2U);
  EXPECT_DOUBLE_EQ(tagged[0].us, 12.5);
  EXPECT_DOUBLE_EQ(tagged[1].bytes, 2048);
  EXPECT_DOUBLE_EQ(tagged[1].us, 13.5);
}

TEST(CostModel, ReadsTheJsonOfAllReducePerf) {
  const std::string text = R"({"version": 1, "config": {"ngpus": 8}, "results": [
    {"size": 0, "count": 0, "out_of_place": {"time": 0.1}, "in_place": {"time": 0.1}},
    {"size": 8, "count": 2, "type": "float", "redop": "sum", "root": "    -1",
     "out_of_place": {"time": 36.5, "alg_bw": 0, "bus_bw": 0, "nwrong": 0}, "in_place": {"time": 37, "nwrong": null}},
    {"size": 16, "count": 4, "out_of_place": null, "in_place": {"time": 38}}], "errors": []})";
  const std::vector<comm::Measurement> rows = comm::parse_measurements(text, "t", "");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_DOUBLE_EQ(rows[0].bytes, 8);
  EXPECT_DOUBLE_EQ(rows[0].us, 36.5);
  EXPECT_DOUBLE_EQ(rows[1].us, 38);
}

// Each GPU's share leaves through its own NIC, so a slow one slows down all, and one less makes two GPUs share.
TEST(CostModel, ABrokenNicSlowsTheNvlsTree) {
  const TopoSystem whole = read_topology(machine("h100x8_8x400g.xml"));
  const auto us = [](const TopoSystem& system) {
    const topo::FoldedCluster cluster = topo::folded({system}, 4);
    const CollectiveModel model(comm::model_inputs(cluster, plan_channels(cluster.cluster)));
    return model.estimate(GpuAlgorithm::kNvlsTree, Collective::kAllReduce, 1 << 30)->us;
  };
  const double all = us(whole), slow = us(topo::with_slow_part(whole, "net:3", 0.5, {})),
               fewer = us(topo::without_part(whole, "nic:3", {})), cut = us(topo::without_part(whole, "link:NIC3", {}));
  EXPECT_NEAR(slow, 2 * all, 0.2 * all);  // less than twice: the launch and the NVLinks are as fast as before
  EXPECT_NEAR(fewer, 2 * all, 0.2 * all);
  EXPECT_DOUBLE_EQ(cut, fewer) << "a NIC without its link to the machine";
}

// The root has one net, whether the machine has others or not.
TEST(CostModel, ALostNicDoesNotSpeedUpADirectBroadcast) {
  const TopoSystem whole = read_topology(machine("a100x8_8x200g.xml"));
  const auto us = [](const TopoSystem& system, double bytes) {
    const topo::FoldedCluster cluster = topo::folded({system}, 2);
    const CollectiveModel model(comm::model_inputs(cluster, plan_channels(cluster.cluster)));
    return model.estimate(GpuAlgorithm::kDirect, Collective::kBroadcast, bytes)->us;
  };
  for (const double bytes : {1024.0, 8192.0, 1048576.0, 1073741824.0})
    EXPECT_GE(us(topo::without_part(whole, "nic:3", {}), bytes), us(whole, bytes)) << bytes;
}

TEST(CostModel, WrongTablesAreNamed) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string_view> words) {
    EXPECT_TRUE(test::fails([&] { comm::parse_measurements(text, "t.txt", "x"); }, ErrorCode::kParse, words)) << text;
  };
  refused("", {"t.txt", "no rows"});
  refused("# only a heading\n", {"no rows"});
  refused("8 2 float sum -1 fast 0.00 0.00 0\n", {"line 1", "column 6", "fast"});
  refused("8 2 float sum -1 nan 0.00 0.00 0\n", {"line 1", "nan"});
  refused("[[8, 1]", {"valid JSON"});
  refused("[[8, \"1\"]]", {"t.txt[0] is \"1\"", "us"});
  refused("[[8, 1], [16]]", {"t.txt[1] is [16]", "[bytes, us]"});
  refused("[[8, -1]]", {"t.txt[0] is -1", "more than 0"});
  refused(R"([{"bytes": 8, "time_us": 1}, {"bytes": 8, "us": 1}])", {"t.txt[1].time_us is missing; present are"});
  refused(R"([{"bytes": 8, "time_us": 1, "time": 1}])", {"t.txt[0].time is 1", "known are: bytes, time_us"});
  refused(R"({"rows": [], "rows": []})", {"t.txt.rows is there twice"});
  refused(R"({"rows": [], "colour": 1})", {"t.txt.colour is 1", "known are"});
  refused("{\"rows\": 3}", {"t.txt.rows is 3", "a list"});
  refused("{\"results\": 3}", {"t.txt.results is 3", "a list"});
  refused(R"({"results": [{"size": 8, "out_of_place": {"cpu_time": 3}}]})",
          {"t.txt.results[0].out_of_place.time", "missing"});
  refused(R"({"results": [{"size": 8, "out_of_place": {"time": "3"}}]})",
          {"t.txt.results[0].out_of_place.time is \"3\""});
  refused(R"({"results": [{"size": 8, "in_place": {"time": 0}}]})",
          {"t.txt.results[0].in_place.time is 0", "more than 0"});
  refused(R"([{"name": "a", "rows": [[1, 1]]}, {"name": "b", "rows": [[1, 1]]}])", {"--table", "a, b"});
  refused(R"([{"name": 7, "rows": [[1, 1]]}, {"rows": 1}])", {"t.txt[0].name is 7", "a text"});
  const ModelInputs inputs = inputs_for("h100x8_8x400g.xml", 1);
  const std::vector<comm::Measurement> few(3, {8, 1});
  EXPECT_TRUE(test::fails([&] { comm::fit_costs(inputs, Collective::kAllReduce, few); }, ErrorCode::kInvalidValue,
                          {"at least 6 rows", "there are 1"}));
}

}  // namespace
}  // namespace slip::test_tables
