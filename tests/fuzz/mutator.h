// Generates almost valid inputs, as a fuzzer does without knowledge of a program's code.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace narrowcast::fuzz {

// Draws inputs from seeds: one of them, changed in 1 to 8 places. The same generator seed gives the same inputs.
class Mutator {
 public:
  // `seeds`: at least one.
  Mutator(std::vector<std::string> seeds, uint64_t random_seed);

  std::string next();

 private:
  uint64_t below(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
  // A position in the text, including its end.
  size_t place(const std::string& text) { return below(text.size() + 1); }
  void change(std::string& text);
  void overwrite(std::string& text);
  void insert(std::string& text);
  void erase(std::string& text);
  void splice(std::string& text);
  void renumber(std::string& text);

  const std::vector<std::string> seeds_;
  std::mt19937_64 random_;
};

}  // namespace narrowcast::fuzz
