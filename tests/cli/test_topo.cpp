// `slip topo`: what it draws, writes and refuses.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "cli/program.hpp"

namespace slip::cli_test::test_topo {
namespace {

std::string data(const std::string& name) { return SLIP_SOURCE_DIR "/tests/topo/data/" + name; }

TEST(CliTopo, ThisMachineIsDrawn) {
  const Outcome outcome = run("topo");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word : {"this machine", "CPU 0", "rings", "trees", "LOC"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word;
}

TEST(CliTopo, AFileOnSeveralNodes) {
  const Outcome outcome = run("topo --nodes 4 --file " + data("nvswitch8.xml"));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word :
       {"8 GPUs, 4 nets", "32 ranks on 4 nodes", "PXN", "rings   96 GB/s", "NVSwitch", "switch  96 GB/s"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << "\n" << outcome.out;
  const Outcome mixed = run("topo --file " + data("nvswitch8.xml") + " --file " + data("host_nic.xml"));
  EXPECT_EQ(mixed.status, 0) << mixed.err;
  EXPECT_NE(mixed.out.find("12 ranks on 2 nodes"), std::string::npos) << mixed.out;
}

TEST(CliTopo, TheFileFromTheEnvironment) {
  ::setenv("SLIP_TOPO_FILE", data("host_nic.xml").c_str(), 1);
  const Outcome outcome = run("topo");
  ::setenv("SLIP_TOPO_FILE", "/nowhere/x.xml", 1);
  const Outcome nowhere = run("topo");
  ::unsetenv("SLIP_TOPO_FILE");
  EXPECT_NE(outcome.out.find("4 GPUs, 1 net"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("instead of 8 GB/s through host memory"), std::string::npos) << outcome.out;
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_NE(nowhere.err.find("/nowhere/x.xml"), std::string::npos) << nowhere.err;
}

TEST(CliTopo, WritesPictureDocumentAndData) {
  const std::string svg = scratch("t.svg"), xml = scratch("t.xml"), json = scratch("t.json");
  const Outcome outcome =
      run("topo --nodes 3 --file " + data("nvswitch8.xml") + " --svg " + svg + " --xml " + xml + " --json " + json);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(read_file(xml), read_file(data("nvswitch8.xml")));
  const std::string picture = read_file(svg);
  EXPECT_TRUE(picture.starts_with("<svg xmlns="));
  EXPECT_TRUE(picture.ends_with("</svg>\n"));
  for (const char* word : {"GPU 7", "mlx5_3", "NVSwitch", "The two trees between 3 machines"})
    EXPECT_NE(picture.find(word), std::string::npos) << word;
  const auto values = nlohmann::json::parse(read_file(json));
  EXPECT_EQ(values.at("machines").size(), 1U);
  EXPECT_EQ(values.at("machines").at(0).at("devices").size(), 8U);
  EXPECT_EQ(values.at("channels").at(0).at("ring").size(), 24U);
  EXPECT_EQ(values.at("channels").at(0).at("trees").size(), 2U);
  EXPECT_DOUBLE_EQ(values.at("ring_gbps").get<double>(), 96);
}

TEST(CliTopo, Predicts) {
  const std::string html = scratch("p.html"), trace = scratch("p.json");
  const Outcome outcome =
      run("topo --nodes 2 --file " + data("nvswitch8.xml") +
          " --predict all_reduce --begin 1M --end 4M --factor 4 --html " + html + " --trace " + trace);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word : {"16 ranks", "1048576", "4194304", "busbw", "ring", "tree", "switch", "doubling", "direct"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << outcome.out;
  EXPECT_NE(read_file(html).find("all_reduce of 4194304 bytes, 16 ranks, direct"), std::string::npos);
  EXPECT_NE(read_file(trace).find("15 to 0"), std::string::npos) << "the message between these";
  EXPECT_NE(read_file(trace).find("link rank 15 to 0, NIC 3 to 0"), std::string::npos) << "tracks have names";
  for (const char* track :
       {"\"rank 0 / rank 0\"", "\"rank 0 / link rank 0 to 1\"", "\"rank 15 / link rank 15 to 0, NIC 3"})
    EXPECT_NE(read_file(html).find(track), std::string::npos) << track;
  const Outcome one = run("topo --file " + data("nvswitch8.xml") +
                          " --predict broadcast --algorithm tree --begin 1M --end 1M --latency 0 --memory 1000");
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.out.find("ring"), std::string::npos) << one.out;
}

std::string machine(const std::string& name) { return SLIP_SOURCE_DIR "/bench/predict/machines/" + name; }

TEST(CliTopo, ASimulationHasTheLatencyOfTheNetwork) {
  const std::string command =
      "topo --nodes 2 --simulate --predict all_reduce --algorithm ring --begin 64K --end 64K "
      "--file " +
      data("nvswitch8.xml");
  EXPECT_NE(run(command).out.find("6 us to another"), std::string::npos);
  EXPECT_NE(run(command + " --network efa").out.find("64 us to another"), std::string::npos);
  EXPECT_NE(run(command + " --network efa --net-latency 3").out.find("3 us to another"), std::string::npos);
}

// Four GPUs without NVLink and two NICs: rings from NIC to NIC cross between the CPUs once instead of twice.
TEST(CliTopo, RingsCrossFromNicToNicIfThatIsFaster) {
  const std::string ask = "topo --nodes 2 --file " + data("pcie4_two_nics.xml");
  EXPECT_NE(run(ask).out.find("rings   20 GB/s in all, 2 channels"), std::string::npos);
  const Outcome rails = run(ask + " --rails");
  EXPECT_NE(rails.out.find("nets 0, 1"), std::string::npos) << rails.out;
  EXPECT_NE(run(ask + " --one-nic").out.find("rings   10 GB/s in all, 1 channel"), std::string::npos);
  const auto time = [&](const std::string& more) {
    const std::string json = scratch("crossed.json");
    run(ask + " --predict all_reduce --algorithm ring --begin 64M --end 64M --simulate --json " + json + more);
    return nlohmann::json::parse(read_file(json)).at(0).at("time_us").get<double>();
  };
  EXPECT_GT(time(" --one-nic"), 1.8 * time(""));
  const Outcome both = run("topo --compare " + data("pcie4_two_nics.xml") + " --predict all_reduce --fit x.txt");
  EXPECT_NE(both.err.find("--compare prints the model's choices"), std::string::npos) << both.err;
}

TEST(CliTopo, PredictsByTheModelOfGpuCosts) {
  const std::string json = scratch("model.json");
  const Outcome outcome = run("topo --nodes 2 --file " + machine("a100x8_4x100g_efa.xml") +
                              " --predict all_reduce --begin 1K --end 1G --factor 1024 --json " + json);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word : {"16 ranks on 2 machines", "Ampere", "network efa", "Simple", "would choose (*): tree LL to"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << outcome.out;
  int chosen = 0;
  for (const auto& row : nlohmann::json::parse(read_file(json))) chosen += row.at("chosen").get<bool>() ? 1 : 0;
  EXPECT_EQ(chosen, 3) << "one of each size";
  const Outcome best = run("topo --nodes 12500 --file " + machine("h100x8_8x400g.xml") +
                           " --predict all_reduce --begin 1G --end 1G --algorithm best");
  ASSERT_EQ(best.status, 0) << best.err;
  EXPECT_NE(best.out.find("100000 ranks on 12500 machines"), std::string::npos) << best.out;
  const Outcome cloud = run("topo --nodes 2 --nvlink 18 --sm 90 --network tcpxo --net-latency 40 --file " +
                            data("azure_ndv4-topo.xml") + " --predict all_reduce");
  ASSERT_EQ(cloud.status, 0) << cloud.err;
  EXPECT_NE(cloud.out.find("Hopper GPUs and network tcpxo of 40 us"), std::string::npos) << cloud.out;
  EXPECT_EQ(cloud.err, "");
  EXPECT_NE(run("topo --file " + data("azure_ndv4-topo.xml")).err.find("--nvlink 18"), std::string::npos);
}

TEST(CliTopo, FitsTheModelToATable) {
  const std::string tables = SLIP_SOURCE_DIR "/bench/predict/tables.json";
  const std::string command = "topo --file " + machine("mi300x8.xml") + " --fit " + tables;
  const Outcome outcome = run(command + " --table mi300x8 --algorithm best");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word : {"fitted to 22 rows", "left out of the fit", "LL128   latency x", "would choose"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << outcome.out;
  const Outcome several = run(command);
  EXPECT_EQ(several.status, 1);
  EXPECT_NE(several.err.find("--table"), std::string::npos) << several.err;
}

TEST(CliTopo, ComparesMachines) {
  const std::string svg = scratch("compared.svg");
  const Outcome outcome = run("topo --compare " + machine("a100x8_8x200g.xml") + " " + machine("h100x8_8x400g.xml") +
                              " --predict all_reduce --nodes 1,2,4 --begin 1M --end 1G --factor 32 --svg " + svg);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word : {"A: ", "B: ", "nvls Simple", "machines", "*"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << outcome.out;
  EXPECT_NE(read_file(svg).find("all_reduce of 1 GiB"), std::string::npos);
}

// A file with NVLinks can be compared with a file of a cloud provider, which has none.
TEST(CliTopo, NvlinksAreAddedToTheMachinesWithoutAny) {
  const std::string with = data("nvswitch8.xml"), without = data("azure_ndv4-topo.xml"),
                    more = " --nvlink 12 --predict all_reduce --begin 1M --end 1M";
  for (const std::string& command :
       {"topo --compare " + with + " " + without + more, "topo --file " + with + " --file " + without + more}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(lines(outcome.err), 1U) << outcome.err;
    EXPECT_NE(outcome.err.find("nvswitch8.xml' has NVLinks or no GPUs"), std::string::npos) << outcome.err;
  }
}

// The times are those of a prediction for each machine alone, also where the size is no multiple of the ranks.
TEST(CliTopo, AComparisonEqualsThePredictions) {
  const std::string json = scratch("compared.json"), a = machine("a100x8_8x200g.xml"), b = machine("h100x8_8x400g.xml");
  const auto rows = [&](const std::string& machines, const std::string& more) {
    const Outcome outcome =
        run("topo " + machines + " --predict all_gather --begin 1K --end 1M --factor 7 --json " + json + more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(read_file(json));
  };
  for (const std::string more : {"", " --algorithm direct"}) {
    const auto compared = rows("--compare " + a + " " + b + " --nodes 3,12", more);
    for (const std::string& file : {a, b}) {
      for (const int nodes : {3, 12}) {
        const auto alone =
            rows("--file " + file + " --nodes " + std::to_string(nodes), more.empty() ? " --algorithm best" : more);
        std::size_t at = 0;
        for (const auto& row : compared) {
          if (row.at("file") != file || row.at("machines") != nodes) continue;
          EXPECT_EQ(row.at("bytes"), alone.at(at).at("bytes"));
          EXPECT_EQ(row.at("algorithm"), alone.at(at).at("algorithm"));
          EXPECT_DOUBLE_EQ(row.at("time_us").get<double>(), alone.at(at).at("time_us").get<double>());
          ++at;
        }
        EXPECT_EQ(at, alone.size());
      }
    }
  }
}

// A dump of many hosts: the plan of all their ranks would take minutes.
TEST(CliTopo, TooManyRanksAreRefusedBeforeTheyArePlanned) {
  const std::string many = scratch("many.xml");
  std::ofstream file(many);
  file << "<system version=\"2\">\n";
  for (int host = 0; host < 5000; ++host)
    file << "<cpu host_hash=\"0x" << host << "\" numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x030200\">"
         << "<gpu dev=\"0\" sm=\"90\"/></pci><nic><net dev=\"0\" speed=\"" << 100000 + host << "\"/></nic></cpu>\n";
  file << "</system>\n";
  file.close();
  for (const std::string how : {"--file ", "--compare "}) {
    const Outcome outcome = run("topo --predict all_reduce --nodes 2 " + how + many);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_NE(outcome.err.find("10000 ranks in the plan: at most 4096"), std::string::npos) << outcome.err;
  }
}

// The hosts of a dump are as many copies of one machine, and folded like these.
TEST(CliTopo, EqualHostsOfADumpAreFolded) {
  const std::string one = std::regex_replace(read_file(data("nvswitch8.xml")), std::regex(" host_hash=\"0x1\""), "");
  const std::string dump = scratch("dump.xml");
  const std::size_t begin = one.find("<cpu"), end = one.find("</system>");
  std::ofstream file(dump);
  file << one.substr(0, begin);
  for (int host = 0; host < 40; ++host) {
    std::string text = one.substr(begin, end - begin);
    for (std::size_t at = 0; (at = text.find("<cpu ", at)) != std::string::npos; at += 5)
      text.insert(at + 5, "host_hash=\"" + std::to_string(host) + "\" ");
    file << text;
  }
  file << "</system>\n";
  file.close();
  const auto table = [](const std::string& arguments) {
    const Outcome outcome = run("topo --predict all_reduce " + arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  };
  EXPECT_EQ(table("--nodes 100 --file " + dump), table("--nodes 4000 --file " + data("nvswitch8.xml")));
}

// The broken part is on one machine of several; a ring is as fast as its slowest machine.
TEST(CliTopo, BrokenPartsCostTime) {
  const std::string command = "topo --nodes 4 --file " + machine("h100x8_8x400g.xml") +
                              " --predict all_reduce --algorithm ring --begin 1G --end 1G";
  const auto us = [](const Outcome& outcome) {
    std::istringstream words(outcome.out.substr(outcome.out.find("1073741824")));
    std::string size, algorithm;
    double channels = 0, result = 0;
    words >> size >> algorithm >> channels >> result;
    return result;
  };
  const double whole = us(run(command)), broken = us(run(command + " --fail nic:3")),
               slow = us(run(command + " --slow nic:3=50%"));
  EXPECT_GT(broken, 1.05 * whole);
  EXPECT_GT(slow, 1.01 * whole);
  EXPECT_LT(slow, broken);
}

// Messages share the links of a device, many at once: one after the other they would take longer than the run did.
TEST(CliTopo, ThePredictedTimelineIsNotBelowItsLowerBound) {
  const std::string trace = scratch("bound-trace.json"), stats = scratch("bound.json");
  ASSERT_EQ(run("topo --nodes 2 --file " + data("nvswitch8.xml") +
                " --predict all_to_all --algorithm direct --begin 16M --end 16M --trace " + trace)
                .status,
            0);
  ASSERT_EQ(run("stats " + trace + " --json " + stats).status, 0);
  const auto figures = nlohmann::json::parse(read_file(stats)).at("traces").at(0).at("figures");
  EXPECT_GT(figures.at("bound").get<std::int64_t>(), 0);
  EXPECT_LE(figures.at("bound").get<std::int64_t>(), figures.at("total").get<std::int64_t>());
}

// The time of an algorithm, in the table.
double time_of(const std::string& algorithm, const std::string& table) {
  std::istringstream lines(table.substr(table.find("time (us)")));
  std::string word;
  while (lines >> word) {
    if (word != algorithm) continue;
    double channels = 0, us = 0;
    lines >> channels >> us;
    return us;
  }
  return 0;
}

// On rails ranks reach those of other numbers through the processor, unless they hand over; without, they gain nothing.
TEST(CliTopo, PredictsWhatRelaysGain) {
  const std::string command =
      "topo --nodes 2 --file " + data("nvswitch8.xml") + " --predict all_to_all --begin 16M --end 16M";
  const Outcome on_rails = run(command + " --rails"), anywhere = run(command);
  ASSERT_EQ(on_rails.status, 0) << on_rails.err;
  EXPECT_GT(time_of("relay", on_rails.out), 0) << on_rails.out;
  EXPECT_LT(time_of("relay", on_rails.out), 0.8 * time_of("direct", on_rails.out)) << on_rails.out;
  EXPECT_LT(time_of("direct", anywhere.out), time_of("relay", anywhere.out)) << anywhere.out;
}

// A machine of two cores and a net.
std::string cores_file() {
  const std::string path = scratch("cores.xml");
  std::ofstream(path) << "<system version=\"1\"><cpu numaid=\"0\"><core dev=\"0\"/><core dev=\"1\"/>"
                      << "<nic><net dev=\"0\" speed=\"10000\"/></nic></cpu></system>\n";
  return path;
}

// The model has costs of GPUs only, so one machine without GPUs is enough for a simulation.
TEST(CliTopo, MachinesWithoutGpusAreSimulated) {
  const std::string cores = cores_file();
  for (const std::string& files : {"--file " + data("nvswitch8.xml") + " --file " + cores,
                                   "--file " + cores + " --file " + data("nvswitch8.xml")}) {
    const Outcome outcome = run("topo --predict all_reduce --begin 64K --end 64K " + files);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("10 ranks, simulated"), std::string::npos) << outcome.out;
  }
}

TEST(CliTopo, WrongLinesAndFilesAreNamed) {
  const std::string bad = scratch("bad.xml");
  run("topo --file " + data("host_nic.xml") + " --xml " + bad);
  std::string text = read_file(bad);
  text.replace(text.find("link_width=\"16\""), 15, "link_width=\"-1\"");
  ASSERT_EQ(std::system(("printf '%s' '" + text + "' >" + bad).c_str()), 0);
  const std::string cores = cores_file();
  struct Wrong {
    std::string arguments;
    int status;
    const char *value, *words;
  };
  for (const Wrong& each :
       {Wrong{"topo --nodes 0", 2, "--nodes 0", "1 to 512"},
        Wrong{"topo --nodes 1,2", 2, "--nodes 1,2", "--compare"},
        Wrong{"topo --nodes 1,,2 --compare a --predict all_reduce", 2, "--nodes 1,,2", "1 to 131072"},
        Wrong{"topo --compare a.xml", 2, "--compare", "--predict"},
        Wrong{"topo --predict all_reduce --algorithm magic --compare " + data("nvswitch8.xml"), 2, "--algorithm magic",
              "best or all"},
        Wrong{"topo --predict all_reduce --xml x.xml --compare " + data("nvswitch8.xml"), 2, "--xml", "--compare"},
        Wrong{"topo --predict all_reduce --table a --compare " + data("nvswitch8.xml"), 2, "--table a", "--fit"},
        Wrong{"topo --predict all_reduce --compare " + cores, 2, cores.c_str(), "without GPUs"},
        Wrong{"topo --nvlink 0", 2, "--nvlink", "0"},
        Wrong{"topo --sm 90", 2, "--sm 90", "--nvlink"},
        Wrong{"topo --nvlink 18 --file " + data("nvswitch8.xml"), 2, "nvswitch8.xml", "has NVLinks"},
        Wrong{"topo --fail nic:99 --file " + data("nvswitch8.xml"), 2, "nic:99", "no such part"},
        Wrong{"topo --fail nic:0 --xml x.xml --file " + data("nvswitch8.xml"), 2, "--xml", "--fail"},
        Wrong{"topo --slow nic:0=150% --file " + data("nvswitch8.xml"), 2, "nic:0=150%", "PART=PERCENT%"},
        Wrong{"topo --slow nic:0 --file " + data("nvswitch8.xml"), 2, "--slow nic:0", "link:PCI0=50%"},
        Wrong{"topo --table a", 2, "--table a", "--fit"},
        Wrong{"topo --fit /nowhere/t.txt --file " + data("nvswitch8.xml"), 1, "/nowhere/t.txt", "cannot open"},
        Wrong{"topo --fit /nowhere/t.txt --simulate --file " + data("nvswitch8.xml"), 2, "--fit", "simulation"},
        Wrong{"topo --predict all_reduce --network carrier-pigeon --file " + data("nvswitch8.xml"), 2, "carrier-pigeon",
              "ib, efa"},
        Wrong{"topo --predict all_reduce --nodes 2 --simulate --network pigeon --file " + data("nvswitch8.xml"), 2,
              "--network pigeon", "ib, efa"},
        Wrong{"topo --predict all_reduce --algorithm magic --file " + data("nvswitch8.xml"), 2, "--algorithm magic",
              "best or all"},
        Wrong{"topo --channels 65", 2, "--channels 65", "1 to 64"},
        Wrong{"topo --predict sort", 2, "--predict sort", "all_reduce, reduce"},
        Wrong{"topo --nodes 2 --predict all_reduce --algorithm magic", 2, "--algorithm magic", "ring, tree"},
        Wrong{"topo --nodes 2 --predict all_reduce --begin 1M --end 1K", 2, "--end 1K", "larger than the last"},
        Wrong{"topo --nodes 2 --predict gather --begin lots", 2, "--begin lots", "a size is expected"},
        Wrong{"topo --colour", 2, "--colour", "--svg"},
        Wrong{"topo --file /nowhere/x.xml", 1, "/nowhere/x.xml", "cannot open"},
        Wrong{"topo --file " + bad, 1, "link_width", "line 3"},
        Wrong{"topo --svg /nowhere/x.svg", 1, "/nowhere/x.svg", "cannot open"}}) {
    const Outcome outcome = run(each.arguments);
    EXPECT_EQ(outcome.status, each.status) << each.arguments;
    EXPECT_EQ(lines(outcome.err), 1U) << outcome.err;
    EXPECT_NE(outcome.err.find(each.value), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(each.words), std::string::npos) << outcome.err;
  }
}

// With a variable of the environment for this run.
Outcome run_with(const char* variable, const std::string& value, const std::string& arguments) {
  ::setenv(variable, value.c_str(), 1);
  const Outcome outcome = run(arguments);
  ::unsetenv(variable);
  return outcome;
}

TEST(CliTopo, TheNetworkToOtherHostsIsExplained) {
  EXPECT_NE(run_with("SLIP_NET", "tcp", "topo").out.find("network to other hosts: tcp (SLIP_NET=tcp)"),
            std::string::npos);
  const std::string automatic = run("topo").out;
  EXPECT_NE(automatic.find("network to other hosts: "), std::string::npos) << automatic;
  const Outcome missing = run_with("SLIP_NET", "plugin:/nowhere/libnccl-net.so", "topo");
  EXPECT_EQ(missing.status, 0) << missing.err;
  for (const char* words : {"network to other hosts: none (", "/nowhere/libnccl-net.so", "LD_LIBRARY_PATH"})
    EXPECT_NE(missing.out.find(words), std::string::npos) << missing.out;
}

TEST(CliTopo, ARunSaysWhichNetworkItUsesIfAsked) {
  ::setenv("SLIP_NET", "tcp", 1);
  const Outcome outcome =
      run_with("SLIP_DEBUG", "net", "bench all_reduce -n 2 -b 8 -e 8 --iters 1 -w 0 --transport net");
  ::unsetenv("SLIP_NET");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE((outcome.out + outcome.err).find("network tcp: SLIP_NET=tcp"), std::string::npos) << outcome.err;
}

TEST(CliTopo, HelpTeaches) {
  const Outcome outcome = run("topo --help");
  EXPECT_EQ(outcome.status, 0);
  for (const char* word : {"PXN", "NCCL_TOPO_DUMP_FILE", "SLIP_TOPO_FILE", "--nodes 4"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word;
}

}  // namespace
}  // namespace slip::cli_test::test_topo
