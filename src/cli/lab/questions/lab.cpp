// Lab questions: each question is answered by an experiment that runs at once.
#include "cli/lab/questions/questions.hpp"

namespace slip::cli {
namespace {

std::string block(std::size_t number, const Question& question, const Finding& finding) {
  const std::string answer =
      finding.shown ? finding.answer : fmt::format("(this run did not show it) {}", finding.answer);
  return fmt::format(
      "\n{}{}{}{}",
      paragraph(fmt::format("{} [rules {}]", question.text, question.rules), 4, fmt::format("{:>2}. ", number)),
      paragraph(finding.ran, 12, "    ran     "), paragraph(finding.seen, 12, "    seen    "),
      paragraph(answer, 12, "    answer  "));
}

Finding run_question(const Bench& bench, const Question& question) {
  try {
    return question.run(bench);
  } catch (const Error& error) {
    const bool refused = error.code() == ErrorCode::kInvalidDevice || error.code() == ErrorCode::kInvalidValue;
    if (!bench.on_gpu() || !refused) throw;
    return {"nothing: this GPU cannot be opened as the experiment needs it", error.what(), "Ask it on cpu or sim.",
            false};
  }
}

}  // namespace

void lab_questions(const Bench& bench, Report& report) {
  report.ask(
      "Questions that come up when one learns about streams, each with an experiment that runs now. Read `ran` first, "
      "guess, then look at `seen`. The numbers are those of the rules in docs/semantics.md.");
  Table table("questions", {"question", "ran", "seen", "answer", "rules", "shown"});
  std::size_t number = 0, shown = 0;
  for (const auto& group : {order_questions(), copy_questions(), slot_questions(), several_device_questions()}) {
    for (const Question& question : group) {
      const Finding finding = run_question(bench, question);
      shown += finding.shown ? 1 : 0;
      report.print(block(++number, question, finding));
      table.row({word(question.text), word(finding.ran), word(finding.seen), word(finding.answer), word(question.rules),
                 yes_no(finding.shown)});
    }
  }
  report.keep(std::move(table));
  report.conclude(fmt::format("This run showed {} of {} answers.", shown, number));
}

}  // namespace slip::cli
