// Where the programs under test and the files that their tests read are: absolute paths, in a file of their own that
// the build writes. A path in any other file would keep clones from sharing what ccache compiled of it.
#pragma once

namespace narrowcast::testing {

extern const char* const kNarrowcastBench;
extern const char* const kNarrowcastQuantize;
extern const char* const kNarrowcastRun;
extern const char* const kNarrowcastTrain;

extern const char* const kPython3;         // CPython 3.11; an empty or no file's name where there is none.
extern const char* const kPythonTorch;     // PYTHONPATH with the torch package; its folders need not exist.
extern const char* const kPythonBytecode;  // PYTHONPYCACHEPREFIX
extern const char* const kSlurmOneNode;    // tests/support/slurm/one_node
extern const char* const kBook;            // A text to train on.
extern const char* const kSbatchExample;   // docs/examples/narrowcast.sbatch

}  // namespace narrowcast::testing
