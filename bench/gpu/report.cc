#include "bench/gpu/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tutti::bench {
namespace {

std::string cell_of(const Row& row, const std::string& column) {
  const auto field = row.find(column);
  if (field == row.end() || field->is_null()) return "-";
  if (field->is_string()) return field->get<std::string>();
  if (field->is_boolean()) return field->get<bool>() ? "yes" : "no";
  if (!field->is_number_float()) return field->dump();
  const double value = field->get<double>();
  return value >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::string section_text(const Section& section) {
  std::string text = fmt::format("\n## {}\n", section.title);
  for (const std::string& note : section.notes) text += fmt::format("\n{}\n", note);
  if (section.rows.empty()) return text;
  text += fmt::format("\n| {} |\n|", fmt::join(section.columns, " | "));
  for (std::size_t i = 0; i < section.columns.size(); ++i) text += "---|";
  text += "\n";
  for (const Row& row : section.rows) {
    text += "|";
    for (const std::string& column : section.columns) text += fmt::format(" {} |", cell_of(row, column));
    text += "\n";
  }
  return text;
}

}  // namespace

std::string to_markdown(const Report& report) {
  std::string text = "# gpu_bench\n";
  for (const auto& [name, value] : report.head.items()) {
    text += fmt::format("\n- {}: {}", name, cell_of(report.head, name));
  }
  text += fmt::format("\n- wrong results: {}\n", report.wrong);
  for (const Section& section : report.sections) text += section_text(section);
  return text;
}

std::string to_json(const Report& report) {
  Row document = {{"schema", "tutti-gpu-bench"}, {"version", 1}, {"wrong", report.wrong}, {"head", report.head}};
  for (const Section& section : report.sections) {
    document["sections"].push_back({{"name", section.name}, {"notes", section.notes}, {"rows", section.rows}});
  }
  return document.dump(2) + "\n";
}

}  // namespace tutti::bench
