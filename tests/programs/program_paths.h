// The paths of the programs under test and of the files that their tests read.
#pragma once

#include <filesystem>
#include <string>

namespace narrowcast::testing {

// The programs are in the folder of the test program.
inline std::string beside_this_program(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name);
}

inline const std::string kNarrowcastBench = beside_this_program("narrowcast-bench");
inline const std::string kNarrowcastQuantize = beside_this_program("narrowcast-quantize");
inline const std::string kNarrowcastRun = beside_this_program("narrowcast-run");
inline const std::string kElasticSteps = beside_this_program("narrowcast_elastic_steps");
inline const std::string kNarrowcastTrain = beside_this_program("narrowcast-train");

// Absolute paths of files, in a separate source file that the build writes. A path in any other source file would keep
// clones from sharing ccache's results for it.
extern const char* const kPython3;         // CPython 3.11; empty, or not a file, if missing.
extern const char* const kPythonTorch;     // PYTHONPATH with the torch package; its folders need not exist.
extern const char* const kPythonBytecode;  // PYTHONPYCACHEPREFIX
extern const char* const kSlurmOneNode;    // tests/support/slurm/one_node
extern const char* const kBook;            // A text to train on.
extern const char* const kSbatchExample;   // docs/examples/narrowcast.sbatch

}  // namespace narrowcast::testing
