// The rules, one function for each group; tidy.h says what they hold.
#pragma once

#include <vector>

#include "source_tree.h"
#include "tidy.h"

namespace tutti::tidy {

void check_layers(const SourceTree& tree, std::vector<Finding>& findings);     // layer, include, cycle
void check_functions(const SourceTree& tree, std::vector<Finding>& findings);  // function-length
void check_usage(const SourceTree& tree, std::vector<Finding>& findings);      // unused
void check_text(const SourceTree& tree, std::vector<Finding>& findings);       // the others

}  // namespace tutti::tidy
