// narrowcast-quantize: converts a trained model to int8 weights.
#include <absl/flags/flag.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <iostream>

#include "trainer/base/program/command_line.h"
#include "trainer/base/program/failure.h"
#include "trainer/base/program/flush_streams.h"
#include "trainer/train/inference/quantize_file.h"

ABSL_FLAG(bool, overwrite, false, "Replace an existing OUTPUT file.");
ABSL_FLAG(bool, dry_run, false, "Check and report everything, but write nothing.");

namespace {

using narrowcast::program::CommandLine;

narrowcast::program::Description description() {
  return {.name = "narrowcast-quantize",
          .version = NARROWCAST_VERSION,
          .summary = "writes a trained model with weight-only int8 Linear layers: a quarter of their bytes.",
          .usage = "narrowcast-quantize [flags] INPUT OUTPUT",
          .groups = {{"Flags", {"overwrite", "dry_run"}}},
          .examples = {{"quantise a model that narrowcast-train wrote",
                        "narrowcast-quantize runs/book/model.safetensors runs/book/model-int8.safetensors"},
                       {"measure the loss of the quantised model",
                        "narrowcast-train --evaluate=runs/book/model-int8.safetensors "
                        "--data=book.txt"},
                       {"quantise a TorchScript module", "narrowcast-quantize model.pt model-int8.pt"}},
          .exit_codes = narrowcast::program::common_exit_codes(),
          .exit_note = "",
          .positionals = narrowcast::program::Positionals::kEndTheFlags};
}

int run(const CommandLine& line) {
  TORCH_CHECK_VALUE(line.rest().size() == 2, "needs two files, INPUT and OUTPUT, after all flags, but there are ",
                    line.rest().size(), " arguments (--help explains them)");
  const narrowcast::inference::QuantizeOptions options = {.input = line.rest()[0],
                                                          .output = line.rest()[1],
                                                          .overwrite = absl::GetFlag(FLAGS_overwrite),
                                                          .dry_run = absl::GetFlag(FLAGS_dry_run)};
  const auto report = narrowcast::inference::quantize_file(options);
  std::cout << narrowcast::inference::report_text(report) << std::flush;
  return narrowcast::program::kSuccess;
}

}  // namespace

int main(int argc, char** argv) {
  const int code = narrowcast::program::run_main(description(), argc, argv, run);
  narrowcast::program::flush_streams();
  std::_Exit(code);
}
