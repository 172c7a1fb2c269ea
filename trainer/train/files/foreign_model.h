// Files that are given as a TorchScript module, but are of another kind.
#pragma once

#include <string>

namespace narrowcast::files {

// Describes a readable file for a message: its kind, and the line of Python that makes a file for these programs. For
// example, "it holds pickled data without code, as torch.save(net.state_dict(), ...) writes it: in Python, ...".
//
// It recognises files of torch.save (state_dicts, pickled modules, the format before version 1.6, other pickles),
// torch.export.save and safetensors, and zip archives of other programs. Empty for anything else, also for a
// TorchScript module. Nothing in the file is executed. Errors are those of InputFile.
std::string describe_foreign_model(const std::string& path);

}  // namespace narrowcast::files
