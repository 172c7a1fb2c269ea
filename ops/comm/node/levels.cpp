#include <narrowcast/levels.h>

#include "ops/common/enumerator_names.h"

namespace narrowcast {
namespace {

constexpr EnumeratorNames<Levels, 3> kLevelsNames{
    "levels", "Levels", {{{Levels::kAuto, "auto"}, {Levels::kOne, "one"}, {Levels::kTwo, "two"}}}};

}  // namespace

std::string_view to_string(Levels levels) { return kLevelsNames.name_of(levels); }

Levels parse_levels(std::string_view name) { return kLevelsNames.parse(name); }

}  // namespace narrowcast
