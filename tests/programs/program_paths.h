// Where the programs under test and the files that their tests read are.
#pragma once

#include <filesystem>
#include <string>

namespace narrowcast::testing {

// The programs lie beside the test program, wherever somebody has put both.
inline std::string beside_this_program(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name);
}

inline const std::string kNarrowcastBench = beside_this_program("narrowcast-bench");
inline const std::string kNarrowcastQuantize = beside_this_program("narrowcast-quantize");
inline const std::string kNarrowcastRun = beside_this_program("narrowcast-run");
inline const std::string kNarrowcastTrain = beside_this_program("narrowcast-train");

// The files: absolute paths, in a file of their own that the build writes. A path in any other file would keep clones
// from sharing what ccache compiled of it.
extern const char* const kPython3;         // CPython 3.11; an empty or no file's name where there is none.
extern const char* const kPythonTorch;     // PYTHONPATH with the torch package; its folders need not exist.
extern const char* const kPythonBytecode;  // PYTHONPYCACHEPREFIX
extern const char* const kSlurmOneNode;    // tests/support/slurm/one_node
extern const char* const kBook;            // A text to train on.
extern const char* const kSbatchExample;   // docs/examples/narrowcast.sbatch

}  // namespace narrowcast::testing
