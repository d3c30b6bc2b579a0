// The rules, with one function for each group. tidy.h describes them.
#pragma once

#include <string_view>
#include <vector>

#include "source_tree.h"
#include "tidy.h"

namespace tutti::tidy {

// Whether any file under the folder `user` may include files under the folder `used`, according to the table in
// layers.cc.
bool may_use(std::string_view user, std::string_view used);

void check_layers(const SourceTree& tree, std::vector<Finding>& findings);     // layer, include, cycle
void check_targets(const SourceTree& tree, std::vector<Finding>& findings);    // target
void check_functions(const SourceTree& tree, std::vector<Finding>& findings);  // function-length
void check_usage(const SourceTree& tree, std::vector<Finding>& findings);      // unused
void check_text(const SourceTree& tree, std::vector<Finding>& findings);       // all other rules

}  // namespace tutti::tidy
