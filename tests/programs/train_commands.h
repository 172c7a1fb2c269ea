// narrowcast-train as the tests start it: small models, a few steps.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
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

// On machines without the default text, the flag for the text that NARROWCAST_TEST_TEXT names; otherwise nothing.
inline Words text_elsewhere() {
  const char* const path = std::getenv("NARROWCAST_TEST_TEXT");
  return path == nullptr ? Words{} : Words{std::string("--data=") + path};
}

// A model that takes milliseconds per step, over the default text unless other data are given.
inline Words small_gpt() {
  return Words{"--model=char_gpt", "--layers=1",      "--heads=2",        "--width=16",        "--context=16",
               "--steps=6",        "--batch_size=12", "--eval_batches=1", "--sample_length=20"} +
         text_elsewhere();
}

// The environment of a single process, however the test was started.
inline std::map<std::string, std::string> alone() {
  return {{"RANK", ""}, {"WORLD_SIZE", ""}, {"LOCAL_RANK", ""}, {"LOCAL_WORLD_SIZE", ""}, {"OMP_NUM_THREADS", "1"}};
}

// Lets the process see the GPUs that this process sees.
inline std::map<std::string, std::string> with_gpus(std::map<std::string, std::string> environment) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  environment["CUDA_VISIBLE_DEVICES"] = visible == nullptr ? "" : visible;
  return environment;
}

inline ProgramEnd train_alone(const Words& flags) { return run_to_end(Words{kNarrowcastTrain} + flags, alone()); }

inline ProgramEnd train_on(int ranks, const Words& flags) {
  return run_to_end(Words{kNarrowcastRun, "--nproc_per_node=" + std::to_string(ranks), kNarrowcastTrain} + flags,
                    alone());
}

// Expects that narrowcast-train prints one line with `text` as an error, and nothing else.
inline void expect_one_line(const ProgramEnd& end, int exit_code, const std::string& text) {
  EXPECT_EQ(end.exit_code, exit_code) << end.errors;
  EXPECT_EQ(count_of("\n", end.errors), 1) << end.errors;
  EXPECT_THAT(end.errors, ::testing::AllOf(::testing::StartsWith("narrowcast-train: "), ::testing::HasSubstr(text)));
  EXPECT_THAT(end.output, ::testing::IsEmpty());
}

// The environment of one of `ranks` ranks, started without a launcher.
inline std::map<std::string, std::string> one_of(int ranks, int rank, int64_t port) {
  return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(ranks)}, {"LOCAL_RANK", ""},
          {"LOCAL_WORLD_SIZE", ""},       {"MASTER_ADDR", "127.0.0.1"},          {"MASTER_PORT", std::to_string(port)},
          {"OMP_NUM_THREADS", "1"}};
}

inline std::map<std::string, std::string> one_of_two(int rank, int64_t port) { return one_of(2, rank, port); }

// Ranks without a launcher, which would end them all. They train forever.
struct EndlessRanks {
  EndlessRanks(int count, const Words& flags) {
    const Words command =
        Words{kNarrowcastTrain} + small_gpt() + Words{"--steps=1000000", "--log_every=1", "--eval_batches=0"} + flags;
    for (int rank = 0; rank < count; ++rank) {
      ranks.push_back(std::make_unique<RunningProgram>(command, one_of(count, rank, port)));
    }
    ranks[0]->wait_for_errors("step");
  }

  // The ends of all ranks except `lost`, by rank.
  std::map<int, ProgramEnd> wait_for_all_but(int lost) const {
    std::map<int, ProgramEnd> ends;
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
      if (rank != lost) ends[rank] = ranks[static_cast<size_t>(rank)]->wait();
    }
    return ends;
  }

  const int64_t port = free_port();  // of the store, which rank 0 serves
  std::vector<std::unique_ptr<RunningProgram>> ranks;
};

// A rank that a test loses, and where the other ranks then wait for it.
struct LostRank {
  int rank = 0;
  int ranks = 2;
  Words flags = {};
};

inline void PrintTo(const LostRank& lost, std::ostream* out) {
  *out << "rank " << lost.rank << " of " << lost.ranks;
  for (const std::string& flag : lost.flags) *out << " " << flag;
}

// The objects of a JSON Lines file.
inline std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::istringstream text(files::read_file(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

}  // namespace narrowcast::testing
