// narrowcast-train as the tests start it: small models, a few steps.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/programs/program_paths.h"
#include "tests/programs/running_program.h"
#include "tests/support/loopback_socket.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::testing {

using Words = std::vector<std::string>;

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A model that takes milliseconds per step, over the project's own text unless told otherwise.
inline Words small_gpt() {
  return {"--model=char_gpt", "--layers=1",      "--heads=2",        "--width=16",        "--context=16",
          "--steps=6",        "--batch_size=12", "--eval_batches=1", "--sample_length=20"};
}

// One process alone, whatever started the test.
inline std::map<std::string, std::string> alone() {
  return {{"RANK", ""}, {"WORLD_SIZE", ""}, {"LOCAL_RANK", ""}, {"LOCAL_WORLD_SIZE", ""}, {"OMP_NUM_THREADS", "1"}};
}

inline ProgramEnd train_alone(const Words& flags) { return run_to_end(Words{kNarrowcastTrain} + flags, alone()); }

inline ProgramEnd train_on(int ranks, const Words& flags) {
  return run_to_end(Words{kNarrowcastRun, "--nproc_per_node=" + std::to_string(ranks), kNarrowcastTrain} + flags,
                    alone());
}

// The environment of one of two ranks, started without a launcher.
inline std::map<std::string, std::string> one_of_two(int rank, int64_t port) {
  return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},          {"LOCAL_RANK", ""},
          {"LOCAL_WORLD_SIZE", ""},       {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port)},
          {"OMP_NUM_THREADS", "1"}};
}

// The objects of a file of JSON lines.
inline std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::istringstream text(files::read_file(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

}  // namespace narrowcast::testing
