// narrowcast_fuzz: feeds targets with almost valid inputs, without a compiler that has a fuzzer.
//
// - narrowcast_fuzz --list                                    prints the targets' names, each after its group's
// - narrowcast_fuzz --target=NAME --inputs=20000 [--seed=1]   reads the corpus, then this number of inputs
// - narrowcast_fuzz --group=NAME --inputs=20000 [--seed=1]    does the same for each target of a group
// - narrowcast_fuzz --target=NAME FILE...                     reads these files
//
// --input_file contains the current input. It remains if the input ends the process: a sanitizer does so, or an
// unexpected error. Exit code 0 if all inputs were accepted or rejected properly, 2 for wrong use.
#include <absl/flags/flag.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/common/file_descriptor.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/target.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/program/command_line.h"
#include "trainer/base/program/failure.h"

ABSL_FLAG(bool, list, false, "Print the names of the targets.");
ABSL_FLAG(std::string, target, "", "Name of the target.");
ABSL_FLAG(std::string, group, "", "Name of the group whose targets all run.");
ABSL_FLAG(int64_t, inputs, 20000, "Number of inputs after the corpus.");
ABSL_FLAG(int64_t, seed, 1, "Seed of the random inputs.");
ABSL_FLAG(std::string, corpus, "", "Folder with a folder of inputs for each target; empty: none.");
ABSL_FLAG(std::string, input_file, "narrowcast_fuzz_input", "File that contains the current input.");

namespace narrowcast::fuzz {
namespace {

// The flags' values before a target parses other flags from an input.
struct Options {
  std::string corpus = absl::GetFlag(FLAGS_corpus);
  std::string input_file = absl::GetFlag(FLAGS_input_file);
  int64_t inputs = absl::GetFlag(FLAGS_inputs);
  uint64_t seed = static_cast<uint64_t>(absl::GetFlag(FLAGS_seed));
};

// A file that contains the input even if a signal ends the process.
class InputRecord {
 public:
  explicit InputRecord(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644)) {
    TORCH_CHECK_VALUE(file_.is_open(), path, ": cannot be made");
  }

  void put(std::string_view input) {
    TORCH_CHECK_VALUE(::ftruncate(file_.get(), std::ssize(input)) == 0 &&
                          ::pwrite(file_.get(), input.data(), input.size(), 0) == std::ssize(input),
                      "input_file: cannot be written");
  }

 private:
  const FileDescriptor file_;
};

std::vector<std::string> corpus_of(const Target& target, const Options& options) {
  std::vector<std::string> inputs = target.seeds();
  const std::filesystem::path folder = std::filesystem::path(options.corpus) / target.name;
  if (!options.corpus.empty() && std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      inputs.push_back(files::read_file(entry.path()));
    }
  }
  return inputs;
}

void print_targets() {
  for (const Group& group : groups()) {
    for (const Target& target : group.targets) std::printf("%s %s\n", group.name.c_str(), target.name.c_str());
  }
}

std::vector<Target> chosen_targets() {
  const std::string name = absl::GetFlag(FLAGS_target);
  const std::string group = absl::GetFlag(FLAGS_group);
  TORCH_CHECK_VALUE(name.empty() != group.empty(), "give one of --target and --group");
  const Target* const target = find_target(name);
  TORCH_CHECK_VALUE(name.empty() || target != nullptr, "--target=", name, ": is none; --list prints all");
  if (target != nullptr) return {*target};
  const auto found = std::ranges::find(groups(), group, &Group::name);
  TORCH_CHECK_VALUE(found != groups().end(), "--group=", group, ": is none; --list prints all");
  return found->targets;
}

void read_inputs(const Target& target, const Options& options,
                 const std::function<void(const Target&, std::string_view)>& read) {
  const std::vector<std::string> corpus = corpus_of(target, options);
  for (const std::string& input : corpus) read(target, input);
  Mutator mutator(corpus, options.seed);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t input = 0; input < options.inputs; ++input) read(target, mutator.next());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%s: %ld inputs in %.1f s\n", target.name.c_str(), options.inputs, seconds.count());
  std::fflush(stdout);
}

int run(const program::CommandLine& line) {
  if (absl::GetFlag(FLAGS_list)) {
    print_targets();
    return program::kSuccess;
  }
  const Options options;
  InputRecord record(options.input_file);
  const auto read = [&](const Target& target, std::string_view input) {
    record.put(input);
    run_target(target, input);
  };
  for (const Target& target : chosen_targets()) {
    if (line.rest().empty()) {
      read_inputs(target, options, read);
    }
    for (const std::string& file : line.rest()) read(target, files::read_file(file));
  }
  std::filesystem::remove(options.input_file);
  return program::kSuccess;
}

program::Description description() {
  return {.name = "narrowcast_fuzz",
          .version = "1",
          .summary = "feeds what reads bytes from outside with inputs that are nearly right.",
          .usage = "narrowcast_fuzz --target=NAME [FILE...]",
          .groups = {{"Flags", {"list", "target", "group", "inputs", "seed", "corpus", "input_file"}}},
          .examples = {},
          .exit_codes = program::common_exit_codes(),
          .exit_note = "",
          .positionals = program::Positionals::kEndTheFlags};
}

}  // namespace
}  // namespace narrowcast::fuzz

int main(int argc, char** argv) {
  return narrowcast::program::run_main(narrowcast::fuzz::description(), argc, argv, narrowcast::fuzz::run);
}
