#include "trainer/train/job/training_results.h"

#include <ATen/CPUGeneratorImpl.h>

#include <optional>

#include <narrowcast/generation.h>
#include "hooks/table/hook_table.h"
#include "ops/common/text.h"
#include "trainer/train/data/text_corpus.h"
#include "trainer/train/reporting/formatting.h"
#include "trainer/train/reporting/progress.h"

namespace narrowcast::job {

nlohmann::json results_of(const EndedTraining& ended) {
  const training::TrainingResult& result = ended.result;
  nlohmann::json results = {{"training_loss", result.training_loss},
                            {"payload_bytes_sent", result.payload_bytes_sent},
                            {"payload_bytes_without_hook", result.payload_bytes_without_hook},
                            {"measuring_bytes_sent", result.measuring_bytes_sent},
                            {"seconds", result.seconds},
                            {"skipped_steps", result.skipped_steps},
                            {"replicas_identical", ended.replicas_identical}};
  if (result.validation_loss.has_value()) {
    results["validation_loss"] = *result.validation_loss;
  }
  if (result.validation_accuracy.has_value()) {
    results["validation_accuracy"] = *result.validation_accuracy;
  }
  if (result.compression.has_value()) {
    results["compression"] = *result.compression;
  }
  if (result.peak_memory_bytes > 0) {
    results["peak_memory_bytes"] = result.peak_memory_bytes;
  }
  if (result.best_validation_loss.has_value()) {
    results["best_validation_loss"] = *result.best_validation_loss;
  }
  if (result.stopped_early_at.has_value()) {
    results["stopped_early_at"] = *result.stopped_early_at;
  }
  if (result.outer.has_value()) {
    results.update(reporting::outer_json(*result.outer));
  }
  return results;
}

void print_results(const AgreedJob& agreed, const EndedTraining& ended) {
  const training::TrainingResult& result = ended.result;
  std::ostream& out = agreed.context.results;
  out << "training loss    " << reporting::format_loss(result.training_loss) << "\n";
  out << reporting::held_out_lines({.loss = result.validation_loss, .accuracy = result.validation_accuracy});
  if (result.stopped_early_at.has_value()) {
    out << "ended early      at step " << *result.stopped_early_at << " of " << agreed.job.training.steps << ", "
        << agreed.job.training.early_stop << " evaluations after the best validation loss of "
        << reporting::format_loss(*result.best_validation_loss) << "\n";
  }
  out << reporting::held_out_lines({.bigram_entropy = agreed.inputs.bigram_entropy});
  out << "sent per rank    " << reporting::format_bytes(static_cast<double>(result.payload_bytes_sent)) << "\n";
  if (result.outer.has_value()) {
    out << "outer exchanges  " << result.outer->exchanges << " ("
        << reporting::format_bytes(static_cast<double>(result.outer->payload_bytes_sent)) << ")\n";
  }
  if (hooks::hook_row(agreed.job.ddp.hook()).make) {
    const auto without_hook = static_cast<double>(result.payload_bytes_without_hook);
    out << "without a hook   " << reporting::format_bytes(without_hook) << "\n";
  }
  if (result.peak_memory_bytes > 0) {
    out << "memory, at most  " << reporting::format_bytes(static_cast<double>(result.peak_memory_bytes)) << "\n";
  }
  if (result.skipped_steps > 0) {
    out << "skipped steps    " << result.skipped_steps << " (a gradient was not finite)\n";
  }
  out << "training time    " << reporting::format_duration(result.seconds) << "\n";
  out << "replicas         " << (ended.replicas_identical ? "identical on all ranks" : "differ between ranks") << "\n";
}

void print_sample(const AgreedJob& agreed) {
  models::Model& model = *agreed.inputs.model;
  const std::optional<models::NextToken> next = model.next_token();
  if (!next.has_value() || agreed.inputs.vocabulary.empty() || agreed.job.output.sample_length == 0) {
    return;
  }
  const data::Vocabulary vocabulary(agreed.inputs.vocabulary);
  const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(agreed.job.seed));
  model.eval();
  const at::Tensor tokens =
      models::generate(*next, vocabulary.line_start(),
                       {.count = agreed.job.output.sample_length, .vocabulary = vocabulary.size()}, generator);
  agreed.context.results << "sample:\n" << printable_text(vocabulary.decode(tokens)) << "\n";
}

}  // namespace narrowcast::job
