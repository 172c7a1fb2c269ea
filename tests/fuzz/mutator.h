// Inputs that are nearly right: what a fuzzer does who knows nothing of a program's inside.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace narrowcast::fuzz {

// Draws inputs from seeds: one of them, changed in a place or in up to 8. The same draws for the same seed of the
// generator.
class Mutator {
 public:
  // `seeds`: at least one.
  Mutator(std::vector<std::string> seeds, uint64_t random_seed);

  std::string next();

 private:
  uint64_t below(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
  // A place in the text, its end included.
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
