#include "trainer/train/reporting/table.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace narrowcast::reporting {
namespace {

std::vector<size_t> column_widths(const std::vector<TableRow>& rows, size_t columns) {
  std::vector<size_t> widths(columns);
  for (const TableRow& row : rows) {
    TORCH_CHECK_VALUE(row.size() == columns, "a row of the table has ", row.size(), " cells instead of ", columns);
    for (size_t i = 0; i < columns; ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  return widths;
}

std::string padded(const std::string& cell, size_t width, char alignment) {
  const std::string blanks(width - cell.size(), ' ');
  return alignment == 'l' ? cell + blanks : blanks + cell;
}

std::string without_blanks_at_the_end(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

std::string aligned_table(const std::vector<TableRow>& rows, std::string_view alignment) {
  const std::vector<size_t> widths = column_widths(rows, alignment.size());
  std::string table;
  for (const TableRow& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += (i == 0 ? "" : "  ") + padded(row[i], widths[i], alignment[i]);
    }
    table += without_blanks_at_the_end(line) + "\n";
  }
  return table;
}

}  // namespace narrowcast::reporting
