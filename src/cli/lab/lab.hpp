// Lab: one experiment on streams that runs on any device. It has a question, tables and a conclusion.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/text.hpp"

namespace slip::cli {

class Bench;

// The user's options. Absent, or 0 bytes: the lab's default.
struct LabOptions {
  std::string device = "cpu";
  std::uint64_t bytes = 0;
  bool quick = false;
  std::string model;                                // lab compress: a folder with weights
  std::string topology;                             // lab gradients: path of a topology file
  std::optional<int> chunks, layers, nodes, ranks;  // nodes and ranks: lab gradients; ranks not on sim
};

// The output of a lab: printed at once, and kept for --json.
class Report {
 public:
  explicit Report(std::string name) : name_(std::move(name)) {}

  void ask(std::string_view text);                                 // the question, and what to watch
  void show(Table table);                                          // prints and keeps it
  void keep(Table table) { tables_.push_back(std::move(table)); }  // for --json only
  void print(std::string_view text) const;
  void conclude(std::string_view text);  // derived from this run's figures; see borne_out()

  Json json() const;

 private:
  std::string name_, question_, conclusion_;
  std::vector<Table> tables_;
};

// A claim for a conclusion. It is marked if the figures of this run do not confirm it.
std::string borne_out(std::string_view claim, bool shown);

struct Lab {
  std::string_view name;
  std::string_view summary;
  void (*run)(const Bench& bench, Report& report);
  bool real_time = false;  // it waits for real deadlines, also on a device with virtual time
};

// All labs, in teaching order.
std::span<const Lab> labs();

void lab_overlap(const Bench& bench, Report& report);
void lab_host(const Bench& bench, Report& report);
void lab_default_stream(const Bench& bench, Report& report);
void lab_weights(const Bench& bench, Report& report);
void lab_compress(const Bench& bench, Report& report);
void lab_deadlock(const Bench& bench, Report& report);
void lab_hook(const Bench& bench, Report& report);
void lab_gradients(const Bench& bench, Report& report);
void lab_events(const Bench& bench, Report& report);
void lab_questions(const Bench& bench, Report& report);

// --- The questions of lab questions ---

// The result of an experiment.
struct Finding {
  std::string ran;
  std::string seen;  // with the figures of this run
  std::string answer;
  bool shown = false;  // true: the figures of this run confirm the answer
};

struct Question {
  const char* text;
  const char* rules;  // of docs/semantics.md
  Finding (*run)(const Bench& bench);
};

std::span<const Question> slot_questions();
std::span<const Question> several_device_questions();

}  // namespace slip::cli
