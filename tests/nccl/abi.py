#!/usr/bin/env python3
"""Compares our nccl.h with NVIDIA's nccl.h of the same version: names, numbers, layouts and functions.

abi.py --ours FOLDER --compiler CXX [--library FILE] [--write-facts FILE] REAL...

REAL are files where NVIDIA's header may be. The first one that exists and has our version is used.

Exit status 0: there is no difference, and every intentional change was detected. 1: there are differences, which are
printed. 77: no such header exists.

--library: links a program to this library, which takes the address of every function with the types of the real
header, and runs it.
--write-facts: writes the numbers of the real header as assertions, which header_test.sh compiles on every machine.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

SKIPPED = 77
# CUDA's own headers would take most of the time. header_test.sh uses those.
CUDA_STANDINS = {
    'cuda_runtime.h': '#pragma once\n#include <stddef.h>\n#define CUDART_VERSION 13000\n'
                      'typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n',
    'cuda_fp16.h': '', 'cuda_bf16.h': '', 'cuda_fp8.h': '',
}
# Intentional changes that the comparison must detect: (text in our header, replacement).
MUTATIONS = [
    ('ncclAvg = 4', 'ncclAvg = 5'),
    ('ncclTimeout = 8,', ''),
    ('#define NCCL_WIN_STRICT_ORDERING 0x02', '#define NCCL_WIN_STRICT_ORDERING 0x04'),
    ('#define NCCL_SHRINK_ABORT 0x01\n', ''),
    ('#define NCCL_REVOKE_DEFAULT 0x00', '#define NCCL_REVOKE_DEFAULT 0x00\n#define NCCL_REVOKE_ALL 0x01'),
    ('int graphUsageMode;', 'long graphUsageMode;'),
    ('  int minCTAs;\n  int maxCTAs;', '  int maxCTAs;\n  int minCTAs;'),
    ('float estimatedTime;', 'int estimatedTime;'),
    ('ncclSimInfo_t), 0x74685283', 'ncclSimInfo_t), 0x74685284'),
    ('ncclResult_t ncclCommResume(ncclComm_t comm);', ''),
    ('ncclResult_t pncclGetVersion(int* version);', 'ncclResult_t pncclGetVersion(long* version);'),
    ('ncclResult_t ncclRedOpDestroy(ncclRedOp_t op', 'ncclResult_t ncclRedOpDestroy(int op'),
    ('int vendorId;', 'long vendorId;'),
    ('const char* algSelection;', 'char* algSelection;'),
    ('  uint64_t userProfilerTag;', '  uint32_t userProfilerTag;'),
    ('ncclNvlsHostModeDisable = INT_MAX', 'ncclNvlsHostModeDisable = 4'),
    ('#define NCCL_UNIQUE_ID_BYTES 128', '#define NCCL_UNIQUE_ID_BYTES 64'),
    ('(X)*10000', '(X)*1000'),
]


class Header:
    """The declarations of one nccl.h, read from the output of the preprocessor."""

    def __init__(self, file, compile_with):
        self.file = file
        text = self.own_text(compile_with + ['-DNCCL_OS_LINUX'])
        self.macros = self.read_macros(text)
        self.macros_elsewhere = self.read_macros(self.own_text(compile_with))
        code = re.sub(r'^#.*$', '', text, flags=re.M)
        while '__attribute__' in code:
            code = re.sub(r'__attribute__\s*\(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\)', '', code, count=1)
        self.enums = {}
        for body, name in re.findall(r'typedef\s+enum\s*\{([^}]*)\}\s*(\w+)\s*;', code):
            self.enums[name] = [item.split('=')[0].strip() for item in body.split(',') if item.strip()]
        self.structs, code = self.read_structs(code)
        self.handles = dict(re.findall(r'typedef\s+struct\s+(\w+)\s*\*\s*(ncclComm_t|nccl\w+)\s*;', code))
        self.functions = {}
        flat = re.sub(r'typedef[^;{]*(\{[^}]*\})?[^;]*;', '', code)
        for result, name, arguments in re.findall(r'([\w\s*]+?)\b(p?nccl\w+)\s*\(([^;{}]*)\)\s*;', flat):
            self.functions[name] = ' '.join(f'{result} {name}({arguments});'.split())

    def own_text(self, compile_with):
        """The lines of the file itself, without comments. Macros are not replaced in the lines that define them."""
        source = f'#include "{self.file}"\n'
        out = subprocess.run(compile_with + ['-E', '-dD', '-'], input=source, check=True, capture_output=True,
                             text=True)
        lines, inside = [], False
        for line in out.stdout.splitlines():
            mark = re.match(r'# \d+ "([^"]*)"', line)
            if mark:
                inside = mark.group(1) == str(self.file)
            elif inside:
                lines.append(line)
        return '\n'.join(lines)

    @staticmethod
    def read_macros(text):
        """Returns name -> (arguments or None, body)."""
        found = re.findall(r'^#define (\w+)(\([^)]*\))? ?(.*)$', text, flags=re.M)
        return {name: (arguments or None, body.strip()) for name, arguments, body in found if name != 'NCCL_H_'}

    def read_structs(self, code):
        """Returns name -> (tag, fields), and the code without these definitions. A structure may contain others, whose
        fields then have names such as "key.vendorId"."""
        structs = {}
        while begin := re.search(r'typedef\s+struct\s*(\w*)\s*\{', code):
            end = self.end_of_block(code, begin.end())
            name = re.match(r'\s*(\w+)\s*;', code[end:])
            structs[name.group(1)] = (begin.group(1), self.read_fields(code[begin.end():end - 1]))
            code = code[:begin.start()] + code[end + name.end():]
        return structs, code

    @staticmethod
    def end_of_block(code, at):
        """The place behind the brace that ends the block that begins before `at`."""
        depth = 1
        while depth > 0:
            depth += {'{': 1, '}': -1}.get(code[at], 0)
            at += 1
        return at

    def read_fields(self, body, prefix=''):
        fields = []
        while body.strip():
            inner = re.match(r'\s*(?:struct|union)\s*\{', body)
            if inner:
                end = self.end_of_block(body, inner.end())
                name = re.match(r'\s*(\w+)\s*;', body[end:])
                fields += self.read_fields(body[inner.end():end - 1], f'{prefix}{name.group(1)}.')
                body = body[end + name.end():]
            else:
                item, body = body.split(';', 1)
                kind, name, array = self.read_field(item)
                fields.append((kind, prefix + name, array))
        return fields

    @staticmethod
    def read_field(declaration):
        """Returns (type, name, array)."""
        kind, name, array = re.fullmatch(r'(.*?)\b(\w+)\s*(\[[^\]]*\])?', ' '.join(declaration.split())).groups()
        return kind.strip(), name, array or ''


def name_differences(ours, real):
    found = []

    def compare(what, mine, theirs, may_add=lambda name: False):
        found.extend(f'{what} {name} is missing' for name in theirs if name not in mine)
        found.extend(f'{what} {name} is not in the real one' for name in mine
                     if name not in theirs and not may_add(name))

    def is_house_name(name):
        return name.startswith(('TUTTI_', 'tutti'))
    compare('macro', ours.macros, real.macros, is_house_name)
    compare('macro without NCCL_OS_LINUX', ours.macros_elsewhere, real.macros_elsewhere, is_house_name)
    compare('enumeration', ours.enums, real.enums, is_house_name)
    compare('structure', ours.structs, real.structs)
    compare('handle', ours.handles, real.handles)
    compare('function', ours.functions, real.functions)
    for name in real.enums:
        compare(f'{name}:', ours.enums.get(name, []), real.enums[name])
    for name, (tag, fields) in real.structs.items():
        own_tag, own_fields = ours.structs.get(name, ('', []))
        if own_tag != tag:
            found.append(f'{name} has the tag "{own_tag}", not "{tag}"')
        compare(f'{name}:', [field[1] for field in own_fields], [field[1] for field in fields])
    found.extend(f'{name} is a struct {ours.handles[name]}*' for name in real.handles
                 if ours.handles.get(name, real.handles[name]) != real.handles[name])
    return found


def numbers_of(real):
    """The text of a program that prints assertions with the numbers of the real header."""
    lines = ['#include <stdio.h>', '#include <stddef.h>', '#include <type_traits>', f'#include "{real.file}"',
             'int main() {']

    def number(expression):
        lines.append(f'  printf("static_assert({expression} == %lld);\\n", (long long)({expression}));')
    for name, (arguments, body) in sorted(real.macros.items()):
        if arguments is None and re.fullmatch(r'-?(0x)?[0-9a-fA-F]+', body):
            number(name)
    for name, items in real.enums.items():
        number(f'sizeof({name})')
        number(f'std::is_signed_v<std::underlying_type_t<{name}>>')
        for item in items:
            number(item)
    for name, (_, fields) in real.structs.items():
        number(f'sizeof({name})')
        number(f'alignof({name})')
        for _, field, _ in fields:
            number(f'offsetof({name}, {field})')
            number(f'sizeof({name}::{field})')
    return '\n'.join(lines + ['}']) + '\n'


def texts_of(real):
    """Assertions that contain text of the real header: macros, types of fields, declarations of functions."""
    lines = ['#include <string_view>']
    for name, (arguments, body) in real.macros.items():
        if name == 'NCCL_VERSION':
            # NCCL_VERSION must give the same numbers as the macro of the real header.
            lines.append(f'#define THEIRS{arguments} {body}')
            lines += [f'static_assert({name}({version}) == THEIRS({version}));'
                      for version in ('2, 8, 4', '2, 32, 3', '1, 9, 0', '3, 1, 2')]
        elif body.startswith('{'):
            struct = re.search(r'sizeof\s*\(\s*(\w+)', body).group(1)
            lines.append(f'constexpr {struct} kOurs{name} = {name}, kTheirs{name} = {body};')
            lines += [f'static_assert(kOurs{name}.{field} == kTheirs{name}.{field});'
                      for _, field, _ in real.structs[struct][1]]
        elif body.startswith('"'):
            lines.append(f'static_assert(std::string_view({name}) == {body});')
        elif arguments is None and body:
            lines.append(f'static_assert(std::is_same_v<decltype({name}), decltype({body})> && ({name}) == ({body}));')
    for name, (_, fields) in real.structs.items():
        for kind, field, array in fields:
            lines.append(f'static_assert(std::is_same_v<decltype({name}::{field}), {kind}{array}>);')
    # A second declaration of a C function with different types is an error.
    lines += ['extern "C" {'] + list(real.functions.values()) + ['}']
    return '\n'.join(lines) + '\n'


def table_of(real):
    names = ', '.join(f'(void*)&{name}' for name in real.functions)
    return (f'#include "{real.file}"\n#include <stdio.h>\nvoid* const kTable[] = {{{names}}};\n'
            'int main() {\n  int version = 0, missing = 0;\n  for (void* each : kTable) missing += each == nullptr;\n'
            '  if (ncclGetVersion(&version) != ncclSuccess || version < NCCL_VERSION_CODE) return 2;\n'
            '  printf("%zu functions linked, version %d\\n", sizeof(kTable) / sizeof(kTable[0]), version);\n'
            '  return missing;\n}\n')


class Comparison:
    def __init__(self, arguments, real_file, place):
        self.place = place
        cuda = place / 'cuda'
        cuda.mkdir()
        for name, text in CUDA_STANDINS.items():
            (cuda / name).write_text(text)
        self.compiler = arguments.compiler
        self.flags = ['-x', 'c++', '-std=c++20', '-w', '-isystem', str(cuda)]
        self.real = Header(real_file, [self.compiler] + self.flags)
        self.facts = self.read_facts()

    def build(self, name, text, *more):
        source, program = self.place / f'{name}.cc', self.place / name
        source.write_text(text)
        return program, subprocess.run([self.compiler, *self.flags, '-DNCCL_OS_LINUX', str(source), '-x', 'none',
                                        '-o', str(program), *more], capture_output=True, text=True)

    def read_facts(self):
        program, built = self.build('numbers', numbers_of(self.real))
        if built.returncode != 0:
            sys.exit('the real header does not compile: ' + built.stderr)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout

    def differences(self, our_file):
        ours = Header(our_file, [self.compiler] + self.flags)
        found = name_differences(ours, self.real)
        text = f'#include <stddef.h>\n#include <type_traits>\n#include "{our_file}"\n'
        text += self.facts + texts_of(self.real)
        _, checked = self.build('check', text, '-fsyntax-only')
        return found + re.findall(r'error: .*', checked.stderr)

    def linked(self, library):
        folder = pathlib.Path(library).parent
        program, built = self.build('table', table_of(self.real), library, f'-Wl,-rpath,{folder}')
        if built.returncode != 0:
            return [line for line in built.stderr.splitlines() if 'undefined' in line or 'error' in line]
        ran = subprocess.run([program], capture_output=True, text=True)
        print(ran.stdout, end='')
        return [] if ran.returncode == 0 else [f'the program that is linked to {library} ends with {ran.returncode}']


def unseen_mutations(comparison, our_text):
    """Returns a message for each of MUTATIONS that the comparison does not detect."""
    mutant = comparison.place / 'nccl_mutant.h'
    unseen = []
    for before, after in MUTATIONS:
        if before not in our_text:
            unseen.append(f'our header has no "{before}", which the test wanted to change')
            continue
        mutant.write_text(our_text.replace(before, after, 1))
        if not comparison.differences(mutant):
            unseen.append(f'nothing was found when "{before}" became "{after}"')
    return unseen


def version_of(file):
    found = re.search(r'^#define\s+NCCL_VERSION_CODE\s+(\d+)', file.read_text(errors='replace'), flags=re.M)
    return int(found.group(1)) if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--ours', required=True, type=pathlib.Path)
    parser.add_argument('--compiler', required=True)
    parser.add_argument('--library', dest='ours_built', default='')
    parser.add_argument('--write-facts', type=pathlib.Path)
    parser.add_argument('real', nargs='*', type=pathlib.Path)
    arguments = parser.parse_args()
    our_file = arguments.ours.resolve() / 'nccl.h'
    present = [file.resolve() for file in arguments.real if file.is_file()]
    fitting = [file for file in present if version_of(file) == version_of(our_file)]
    if not fitting:
        print(f'SKIPPED: no nccl.h of version {version_of(our_file)}; there is',
              ', '.join(f'{file} ({version_of(file)})' for file in present) or 'none at all')
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(arguments, fitting[0], pathlib.Path(folder))
        if arguments.write_facts:
            arguments.write_facts.write_text(
                "// The constants and sizes of the NCCL API, which abi.py reads from NVIDIA's nccl.h with a compiler.\n"
                '#include <cstddef>\n#include <type_traits>\n\n#include "nccl.h"\n\n' + comparison.facts)
        found = comparison.differences(our_file) or unseen_mutations(comparison, our_file.read_text())
        if arguments.ours_built:
            found += comparison.linked(arguments.ours_built)
        real = comparison.real
        print(f'{fitting[0]}: {len(real.functions)} functions, {len(real.macros)} macros, '
              f'{sum(map(len, real.enums.values()))} enumerators, {len(real.structs)} structures; '
              f'{len(MUTATIONS)} mutations; {len(found)} findings')
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
