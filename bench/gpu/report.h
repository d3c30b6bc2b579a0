// What gpu_bench has measured: sections of rows, as Markdown for people and as JSON for programs. Values.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tutti::bench {

using Row = nlohmann::ordered_json;  // an object; what a column does not name stands in the JSON only

struct Section {
  std::string name;  // in the JSON
  std::string title;
  std::vector<std::string> notes;    // above the table; with no rows, why there are none
  std::vector<std::string> columns;  // fields of the rows, in order
  std::vector<Row> rows;
};

struct Report {
  Row head;  // fields about the whole run
  std::vector<Section> sections;
  std::uint64_t wrong = 0;  // results of all sections that were not right
};

std::string to_markdown(const Report& report);
std::string to_json(const Report& report);

}  // namespace tutti::bench
