// `slip ranks`: the state of all ranks on this host, and which ranks stall others.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <compare>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "comm/diagnose/stalls.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip::cli {
namespace {

constexpr int kBlocked = 3;  // exit status: a rank is stalled by another one

struct RanksOptions {
  std::string json;  // path; empty: print a table
  bool watch = false;
  int times = 0;  // of --watch; 0: until interrupted
};

struct Seen {
  comm::RankState state;
  std::string program;
};

// A user can write any communicator id into a ledger, so ids of different users are never treated as equal.
struct Id {
  std::uint32_t user = 0;
  std::uint64_t communicator = 0;
  friend auto operator<=>(const Id&, const Id&) = default;
};
using Found = std::map<Id, std::vector<Seen>>;

struct Host {
  Found found;                            // by communicator, then by rank
  std::map<std::uint32_t, int> left_out;  // entries beyond the limits, by user
};

// Communicators that all ranks have left are omitted.
Host look_around() {
  Host host;
  Found& found = host.found;
  for (const transport::ProcessLedger& ledger : transport::read_ledgers()) {
    for (const transport::LedgerView& view : ledger.ranks)
      found[{ledger.user, view.communicator}].push_back({{view, ledger.process.state}, ledger.process.program});
    if (ledger.left_out > 0) host.left_out[ledger.user] += ledger.left_out;
  }
  std::erase_if(found, [](const auto& one) {
    return std::ranges::all_of(one.second,
                               [](const Seen& each) { return each.state.view.life == transport::LedgerLife::kLeft; });
  });
  for (auto& [id, ranks] : found)
    std::ranges::stable_sort(ranks, {}, [](const Seen& one) { return one.state.view.rank; });
  return host;
}

// For each user separately, because ranks never wait for ranks of another user.
std::vector<comm::Stall> stalls_of(const Found& found) {
  std::map<std::uint32_t, std::vector<comm::RankState>> by_user;
  for (const auto& [id, ranks] : found) {
    for (const Seen& one : ranks) by_user[id.user].push_back(one.state);
  }
  std::vector<comm::Stall> result;
  for (const auto& [user, ranks] : by_user) {
    for (comm::Stall& one : comm::find_stalls(ranks)) result.push_back(std::move(one));
  }
  return result;
}

Table table_of(const std::vector<Seen>& ranks) {
  Table table("", {"rank", "pid", "state", "for", "on", "done", "bytes", "in, or last in"});
  for (const Seen& one : ranks) {
    const transport::LedgerView& view = one.state.view;
    const std::int64_t since = comm::in_state_ns(one.state);
    table.row({number(view.rank), number(view.pid), word(comm::state_word(one.state)),
               since > 0 ? word(comm::seconds_text(since)) : none(),
               one.state.waits() ? word(fmt::format("rank {}", view.waits_for)) : none(),
               word(fmt::format("{}/{}", view.ended, view.enqueued)), bytes(view.bytes),
               view.begun > 0 ? word(comm::call_text(view)) : none()});
  }
  return table;
}

Json json_of(const Seen& one) {
  const transport::LedgerView& view = one.state.view;
  const bool waits = one.state.waits();
  return {{"rank", view.rank},
          {"pid", view.pid},
          {"program", one.program},
          {"host", view.host},
          {"device", view.device},
          {"state", comm::state_word(one.state)},
          {"stopped", one.state.stopped()},
          {"seconds", static_cast<double>(comm::in_state_ns(one.state)) / 1e9},
          {"waits_for", waits ? Json(view.waits_for) : Json()},
          {"call", view.begun > 0 ? Json(comm::call_text(view)) : Json()},
          {"enqueued", view.enqueued},
          {"begun", view.begun},
          {"ended", view.ended},
          {"bytes", view.bytes},
          {"text", view.text},
          {"doing", comm::doing(one.state)}};
}

void write_ranks_json(const std::string& path, const Host& host, const std::vector<comm::Stall>& held) {
  Json communicators = Json::array(), held_up = Json::array(), left_out = Json::array();
  for (const auto& [id, ranks] : host.found) {
    Json all = Json::array();
    for (const Seen& one : ranks) all.push_back(json_of(one));
    const transport::LedgerView& view = ranks.front().state.view;
    communicators.push_back({{"id", comm::communicator_id(view)},
                             {"name", view.name},
                             {"user", id.user},
                             {"nranks", view.nranks},
                             {"ranks", std::move(all)}});
  }
  for (const comm::Stall& one : held) held_up.push_back({{"kind", comm::stall_name(one.kind)}, {"text", one.text}});
  for (const auto& [user, entries] : host.left_out) left_out.push_back({{"user", user}, {"entries", entries}});
  write_json(path, {{"communicators", communicators}, {"held_up", held_up}, {"left_out", left_out}});
}

int show(const RanksOptions& options) {
  const Host host = look_around();
  const Found& found = host.found;
  const std::vector<comm::Stall> held = stalls_of(found);
  if (!options.json.empty()) write_ranks_json(options.json, host, held);
  if (found.empty()) fmt::print("no ranks: no process of this user on this host has a communicator\n");
  for (const auto& [id, ranks] : found) {
    const transport::LedgerView& view = ranks.front().state.view;
    const std::string user = id.user == ::geteuid() ? "" : fmt::format(", user {}", id.user);
    fmt::print("communicator {}: {} of {} ranks on host {}, program {}{}\n\n{}\n", comm::communicator_text(view),
               ranks.size(), view.nranks, view.host, ranks.front().program, user, table_of(ranks).text());
  }
  for (const comm::Stall& one : held)
    fmt::print("{}\n", paragraph(fmt::format("{}: {}", comm::stall_name(one.kind), one.text), 4));
  if (!found.empty() && held.empty()) fmt::print("no rank is blocked\n");
  for (const auto& [user, entries] : host.left_out)
    fmt::print("not shown: {} entries of user {}, because only a limited number is shown of each user\n", entries,
               user);
  return held.empty() ? kSuccess : kBlocked;
}

int run_ranks(const RanksOptions& options) {
  if (!options.watch) return show(options);
  base::Parker pause;
  for (int round = 1;; ++round) {
    if (round > 1) fmt::print("\n");
    const int status = show(options);
    std::fflush(stdout);
    if (round == options.times) return status;
    pause.park(base::now_ns() + 1'000'000'000);
  }
}

}  // namespace

std::function<int()> add_ranks(CLI::App& app) {
  auto options = std::make_shared<RanksOptions>();
  CLI::App* ranks = app.add_subcommand("ranks", "Show the state of all ranks on this host, and their stalls");
  ranks->footer(
      "\nEvery process with a communicator keeps a ledger in shared memory (a memfd named slip-ledger). This\n"
      "command reads the ledgers of all your processes on this host. It does not disturb them and works also if\n"
      "they hang, are stopped or run in a debugger. Run it on each host of a job. Root sees the ranks of all users,\n"
      "with the user id and at most 512 entries per user.\n"
      "\n"
      "States: outside (the rank is in no call of Slipstream), enqueued (its stream has not reached the call yet),\n"
      "waits (for another rank), moves data, stopped (by a signal or a debugger), failed, aborted, left. `done`\n"
      "has the number of finished and of enqueued calls.\n"
      "\n"
      "Below the table are the stalls: which rank waits for which. A deadlock is a cycle of waits that cannot end,\n"
      "for example if two ranks enqueue the calls of two communicators in different orders (slip lab deadlock).\n"
      "Times may be up to a quarter of a second old.\n"
      "\n"
      "  slip ranks                      once\n"
      "  slip ranks --watch              every second, until interrupted\n"
      "  slip ranks --json | jq '.held_up[].text'\n"
      "\n"
      "Status: 0 no rank is blocked, or there are no ranks; 3 a rank is blocked.");
  add_output(*ranks, "--json", options->json, "Write the ranks and stalls as JSON");
  ranks->add_flag("--watch", options->watch, "Repeat every second, until interrupted");
  ranks->add_option("--times", options->times, "With --watch: number of repetitions")->check(CLI::Range(1, 1'000'000));
  return [options] { return run_ranks(*options); };
}

}  // namespace slip::cli
