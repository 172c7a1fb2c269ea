// Which files a text is read from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::data {

// Suffixes of the files that are taken from folders.
const std::vector<std::string_view>& text_suffixes();

// The text files that `paths` stand for. A file stands for itself, whatever its name. A folder stands for the
// regular files in it and in the folders below it that have one of text_suffixes(), sorted by path; names that
// begin with a dot are left out (files and folders), and folders behind symbolic links are not entered. Throws
// c10::ValueError naming the path if there is no such file or folder, a folder cannot be read or holds no such
// file, or if there are no paths.
std::vector<std::string> list_text_files(const std::vector<std::string>& paths);

// narrowcast's own sources and documents, the text that is surely there: beside the running program, if it is an
// installed one (../share/narrowcast/text), else where it was built.
std::vector<std::string> own_text_paths();

}  // namespace narrowcast::data
