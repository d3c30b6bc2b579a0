#include "tools/common/svg_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tutti::tool {
namespace {

// Formats a length or coordinate with at most two decimals and without trailing zeros: "12", "12.5", "12.25".
std::string number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

// True if the byte is the first one of a character in UTF-8 text.
bool begins_letter(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }

std::string attributes_of(const SvgStroke& stroke) {
  std::string text = fmt::format("stroke=\"{}\" stroke-width=\"{}\"", stroke.colour, number(stroke.width));
  if (stroke.opacity != 1) text += fmt::format(" stroke-opacity=\"{}\"", number(stroke.opacity));
  if (!stroke.dashes.empty()) text += fmt::format(" stroke-dasharray=\"{}\"", stroke.dashes);
  return text;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char letter : text) {
    switch (letter) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += static_cast<unsigned char>(letter) < ' ' ? ' ' : letter;
    }
  }
  return safe;
}

std::size_t letter_count(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_letter));
}

std::string shorten(const std::string& text, std::size_t letters) {
  if (letter_count(text) <= letters) return text;
  const std::size_t kept = letters > 2 ? letters - 2 : 0;
  std::size_t end = 0;
  for (std::size_t count = 0; end < text.size(); ++end) {
    if (begins_letter(text[end]) && ++count > kept) break;
  }
  return text.substr(0, end) + "..";
}

void SvgDrawing::line(double x1, double y1, double x2, double y2, const SvgStroke& stroke) {
  body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {}/>\n", number(x1), number(y1), number(x2),
                       number(y2), attributes_of(stroke));
}

void SvgDrawing::path(std::string_view path_data, const SvgStroke& stroke) {
  body_ += fmt::format("<path d=\"{}\" fill=\"none\" {}/>\n", path_data, attributes_of(stroke));
}

void SvgDrawing::area(std::string_view path_data, std::string_view fill) {
  body_ += fmt::format("<path d=\"{}\" fill=\"{}\"/>\n", path_data, fill);
}

void SvgDrawing::box(double x, double y, double width, double height, const SvgBox& box) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", number(x), number(y), number(width),
                       number(height));
  if (box.radius > 0) body_ += fmt::format(" rx=\"{}\"", number(box.radius));
  body_ += fmt::format(" fill=\"{}\"", box.fill);
  if (!box.line.empty()) body_ += ' ' + attributes_of({.colour = box.line, .width = box.line_width});
  body_ += box.title.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", escaped(box.title));
}

void SvgDrawing::circle(double x, double y, double radius, std::string_view fill) {
  body_ +=
      fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>\n", number(x), number(y), number(radius), fill);
}

void SvgDrawing::text(double x, double y, std::string_view words, const SvgFont& font) {
  if (words.empty()) return;
  body_ += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{}\" text-anchor=\"{}\"{}>{}</text>\n",
                       number(x), number(y), number(font.size), font.colour, font.anchor,
                       font.bold ? " font-weight=\"bold\"" : "", escaped(words));
}

std::string SvgDrawing::document(double width, double height) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "{2}</svg>\n",
      width, height, body_);
}

}  // namespace tutti::tool
