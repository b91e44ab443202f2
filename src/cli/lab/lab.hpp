// A lab: one experiment on streams, run on any device, with its question, its tables and its conclusion.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/table.hpp"

namespace slip::cli {

class Bench;

// What the user asked for. 0: the lab's own choice.
struct LabOptions {
  std::string device = "cpu";
  std::uint64_t bytes = 0;
  int chunks = 0;
  int layers = 0;
  bool quick = false;
  std::string topology;  // gradients: a file; empty: none
  int nodes = 0;
  int ranks = 0;  // gradients, on cpu
};

// What a lab says. Printed as it comes, kept for --json.
class Report {
 public:
  explicit Report(std::string name) : name_(std::move(name)) {}

  void ask(std::string_view text);  // the question, and what to look at
  void show(Table table);           // printed whole
  void keep(Table table);           // for --json only
  void print(std::string_view text) const;
  void conclude(std::string_view text);  // computed from the figures; see borne_out()

  const std::string& name() const { return name_; }
  const std::string& question() const { return question_; }
  const std::string& conclusion() const { return conclusion_; }
  const std::vector<Table>& tables() const { return tables_; }

 private:
  std::string name_, question_, conclusion_;
  std::vector<Table> tables_;
};

// What a lab teaches, in a conclusion: marked where the figures of this run do not bear it out.
std::string borne_out(std::string_view claim, bool shown);

struct Lab {
  std::string_view name;
  std::string_view summary;
  void (*run)(const Bench& bench, Report& report);
  bool real_time = false;  // it waits for deadlines of the host, also on a device with virtual time
};

// All labs, in the order in which they teach.
std::span<const Lab> labs();

void lab_overlap(const Bench& bench, Report& report);
void lab_host(const Bench& bench, Report& report);
void lab_default_stream(const Bench& bench, Report& report);
void lab_weights(const Bench& bench, Report& report);
void lab_deadlock(const Bench& bench, Report& report);
void lab_hook(const Bench& bench, Report& report);
void lab_gradients(const Bench& bench, Report& report);
void lab_events(const Bench& bench, Report& report);
void lab_questions(const Bench& bench, Report& report);

}  // namespace slip::cli
