#include "tools/common/svg_text.h"

#include <fmt/format.h>

namespace tutti::tool {

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

std::string shorten(const std::string& text, std::size_t letters) {
  if (text.size() <= letters) return text;
  std::size_t end = letters > 2 ? letters - 2 : 0;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // do not cut a UTF-8 character
  return text.substr(0, end) + "..";
}

void SvgText::line(double x1, double y1, double x2, double y2, std::string_view colour, double width,
                   std::string_view dashes) {
  body_ += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{:.1f}\"{}/>\n", x1,
      y1, x2, y2, colour, width, dashes.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dashes));
}

void SvgText::arrow(double x1, double y1, double x2, double y2, std::string_view colour) {
  constexpr double kHead = 6;
  line(x1, y1, x2 - kHead, y2, colour, 1.6);
  body_ += fmt::format("<path d=\"M{:.1f} {:.1f} l-7 -3.5 v7 z\" fill=\"{}\"/>\n", x2, y2, colour);
}

void SvgText::path(const std::string& path_data, std::string_view colour, double width, double opacity) {
  body_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:.1f}\" opacity=\"{}\"/>\n",
                       path_data, colour, width, opacity);
}

void SvgText::box(double x, double y, double width, double height, std::string_view fill, std::string_view line) {
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"5\" fill=\"{}\" stroke=\"{}\"/>\n", x, y,
      width, height, fill, line);
}

void SvgText::chip(double x, double y, double radius, const std::string& words, std::string_view colour) {
  body_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\"/>\n", x, y, radius, colour);
  text(x, y + 4, words, {.size = 11, .colour = "#ffffff", .bold = true});
}

void SvgText::text(double x, double y, std::string_view words, const SvgFont& font) {
  if (words.empty()) return;
  body_ +=
      fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" fill=\"{}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                  font.size, font.colour, font.anchor, font.bold ? " font-weight=\"bold\"" : "", escaped(words));
}

std::string svg_document(double width, double height, const std::string& body) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
             "{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
             width, height) +
         body + "</svg>\n";
}

}  // namespace tutti::tool
