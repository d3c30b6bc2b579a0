"""Translates PTX, the code that nvcc makes of kernels/device/entry.cu, into C++ for the emulator of GPUs.

    translate.py ENTRY.ptx KERNELS.cc

Each instruction becomes one statement, and each register one variable. So tests run what nvcc has made of the device
code: its optimisations, the inline assembler of port_cuda.h, and the addresses of kernel parameters. What PTX does not
show (the machine code that ptxas makes of it, and warps whose threads diverge) is not run.

An instruction that is not known ends the program with an error, so that no part of the code is left out.
"""

import re
import sys

TYPES = {"b8": "u8", "b16": "u16", "b32": "u32", "b64": "u64", "pred": "bool"}
REGISTERS = {"rs": "u16", "r": "u32", "rd": "u64", "f": "f32", "fd": "f64", "p": "bool"}
SPECIAL = {"%tid.x": "port::thread()", "%ntid.x": "port::threads()", "%ctaid.x": "port::block()",
           "%nctaid.x": "port::blocks()", "%globaltimer": "port::now_ns()"}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
TWICE = {"u16": "u32", "u32": "u64", "s16": "s32", "s32": "s64"}
FLOAT8 = {"e4m3x2": "kernels::Float8E4M3", "e5m2x2": "kernels::Float8E5M2"}
# The kernels that are translated, and the types of their arguments.
KERNELS = {"tutti_evaluate_simple": "Launch", "tutti_evaluate_ll": "Launch", "tutti_evaluate_ll128": "Launch",
           "tutti_transfer": "TransferLaunch", "tutti_reduce": "PlainWork", "tutti_copy": "CopyWork"}


class Unknown(Exception):
    """Something that this program cannot translate."""


def c_type(name):
    return TYPES.get(name, name)


def unsigned(name):
    return "u" + name[1:] if name[0] == "s" else name


def register_type(text):
    match = re.fullmatch(r"%(rs|rd|fd|r|f|p)\d+", text)
    if match:
        return REGISTERS[match.group(1)]
    return "u64" if text in ("%SP", "%SPL", "%tmp") else None


def variable(register):
    return re.sub(r"^%(\D+)(\d*)$", r"\1_\2", register)


def split(text):
    """The operands of an instruction: divided at commas, but not inside of braces."""
    return [part.strip() for part in re.split(r",(?![^{]*\})", text) if part.strip()]


def vector(operand):
    return [part.strip() for part in operand.strip("{} ").split(",")]


def declared(text):
    """The name and the size in bytes of a parameter, for example of `.param .align 16 .b8 name[32]`."""
    bits, name, count = re.search(r"\.[bus](\d+)\s+([\w$]+)(?:\[(\d+)\])?$", text.strip()).groups()
    return name, int(bits) // 8 * int(count or 1)


# The declaration of an array in shared memory. nvcc 13.0 puts it into the function that uses the array, or outside of
# functions if several of them use it.
SHARED = r"\.shared\s+\.align\s+\d+\s+\.b8\s+(\S+)\[(\d+)\];"


class Function:
    barriers = 0  # number of barriers of blocks in all functions so far
    shared_arrays = {}  # the sizes, by name, of the arrays in shared memory that are declared outside of functions

    def __init__(self, kind, name, result, parameters, body):
        self.kind, self.name, self.body = kind, name, body
        self.result = declared(result) if result else None
        self.parameters = [declared(parameter) for parameter in split(parameters)]
        self.shared = None   # name of the shared memory
        self.bytes = {}      # how to reach the bytes of parameters: C++ expressions for pointers
        self.memory = set()  # names of arrays in local memory

    def signature(self):
        if self.kind == "entry":
            return f"void {self.name}(const device::{KERNELS[self.name]}& argument)"
        types = [f"Parameter<{self.result[1]}>& result"] if self.result else []
        types += [f"Parameter<{size}> argument{index}" for index, (_, size) in enumerate(self.parameters)]
        return f"static void {self.name}({', '.join(types)})"

    def translate(self):
        lines = [self.signature() + " {"]
        if self.kind == "entry":
            self.bytes[self.parameters[0][0]] = "reinterpret_cast<const unsigned char*>(&argument)"
        else:
            self.bytes.update({name: f"argument{index}.bytes" for index, (name, _) in enumerate(self.parameters)})
            if self.result:
                self.bytes[self.result[0]] = "result.bytes"
        lines += self.declarations()
        for statement in self.statements():
            lines += self.line(statement)
        return lines + ["}"]

    def declarations(self):
        """The variables of the function, which PTX declares anywhere in it. Removes them from the body."""
        lines = []
        for name, size in re.findall(r"\.local\s+\.align\s+\d+\s+\.b8\s+(\S+)\[(\d+)\];", self.body):
            lines.append(f"alignas(16) unsigned char {name}[{size}];")
            self.memory.add(name)
        used = [(name, size) for name, size in Function.shared_arrays.items() if re.search(rf"{name}\b", self.body)]
        for name, size in used + re.findall(SHARED, self.body):
            lines.append(f"const u64 shared_memory = address_of(port::emulator().shared_memory(nullptr, {size}));")
            self.shared = name
        for _, name in re.findall(r"\.reg\s+\.(\w+)\s+%(\w+?)<\d+>;", self.body):
            numbers = sorted({int(number) for number in re.findall(rf"%{name}(\d+)\b", self.body)})
            for begin in range(0, len(numbers), 20):
                names = ", ".join(f"{name}_{number} = 0" for number in numbers[begin:begin + 20])
                lines.append(f"{REGISTERS[name]} {names};")
        lines += [f"u64 {name}_ = 0;" for name in ("SP", "SPL", "tmp") if f"%{name}" in self.body]
        declaration = r"\.(local|shared)\s+\.align[^;]*;|\.reg\s+[^;]*;|\.pragma[^;]*;|\.loc[^;\n]*\n"
        self.body = re.sub(declaration, "", self.body)
        return lines

    def statements(self):
        """Labels, braces and instructions, in their order."""
        pattern = r"\$L\w+:|[^\s;{}][^;{}]*(?:\{[^;{}]*\}[^;{}]*)*;|[{}]"
        return [re.sub(r"\s+", " ", match).rstrip("; ") for match in re.findall(pattern, self.body)]

    def line(self, text):
        label = re.match(r"\$(L\w+):\s*(.*)", text)
        if label:
            return [label.group(1) + ":;"] + (self.line(label.group(2)) if label.group(2) else [])
        if text in ("{", "}"):
            return [text]
        if text.startswith(".param"):
            name, size = declared(text)
            self.bytes[name] = f"{name}_.bytes"
            return [f"Parameter<{size}> {name}_{{}};"]
        guard = re.match(r"@(!?)(%p\d+) (.*)", text)
        condition = f"if ({guard.group(1)}{variable(guard.group(2))}) " if guard else ""
        text = guard.group(3) if guard else text
        name, _, rest = text.partition(" ")
        parts = name.split(".")
        method = getattr(self, "op_" + parts[0], None)
        if method is None:
            raise Unknown(text)
        return [condition + "{ " + method(parts, split(rest)) + " }" if condition else method(parts, split(rest))]

    # --- operands -----------------------------------------------------------------------------------------------------

    def value(self, text, wanted):
        """A C++ expression of type `wanted` for an operand."""
        if register_type(text):
            has = register_type(text)
            if has == wanted or "bool" in (has, wanted):
                return variable(text)
            if wanted[0] == "f" or has[0] == "f":
                return f"bits<{wanted}>({variable(text)})"
            return f"static_cast<{wanted}>({variable(text)})"
        if text in SPECIAL:
            return f"static_cast<{wanted}>({SPECIAL[text]})"
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            return f"bits<f32>(u32{{0x{text[2:]}u}})"
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
            return f"bits<f64>(u64{{0x{text[2:]}u}})"
        if re.fullmatch(r"-?(\d+|0[xX][0-9a-fA-F]+)U?", text):
            number = int(text.rstrip("U"), 0) & (1 << 64) - 1
            if wanted[0] == "f":
                return f"bits<{wanted}>(static_cast<u{wanted[1:]}>({number}u))"
            return f"static_cast<{wanted}>({number}u)"
        if text == self.shared:
            return f"static_cast<{wanted}>(0)"  # an address in shared memory is an offset from its start
        if text in self.memory:
            return f"address_of({text})"
        if text in self.bytes:
            return f"address_of({self.bytes[text]})"
        raise Unknown(f"operand {text} in {self.name}")

    def set(self, register, expression, has):
        """Sets a register to an expression of type `has`."""
        if register == "_":
            return ""
        wanted = register_type(register)
        if wanted is None:
            raise Unknown(f"destination {register} in {self.name}")
        if wanted == has or "bool" in (has, wanted):
            return f"{variable(register)} = {expression};"
        if wanted[0] == "f" or has[0] == "f":
            return f"{variable(register)} = bits<{wanted}>({expression});"
        return f"{variable(register)} = static_cast<{wanted}>({expression});"

    def address(self, operand):
        """The base and the offset of an operand like [%rd1+16]."""
        base, _, offset = operand.strip("[]").partition("+")
        return base.strip(), int(offset or 0)

    # --- instructions -------------------------------------------------------------------------------------------------

    def op_bra(self, parts, operands):
        return f"goto {operands[0].lstrip('$')};"

    def op_ret(self, parts, operands):
        return "return;"

    def op_call(self, parts, operands):
        match = re.fullmatch(r"(?:\((\w+)\), )?([\w$]+)(?:, \(([^)]*)\))?", ", ".join(operands))
        results = [match.group(1)] if match.group(1) else []
        arguments = [name.strip() for name in (match.group(3) or "").split(",") if name.strip()]
        return f"{match.group(2)}({', '.join(name + '_' for name in results + arguments)});"

    def op_mov(self, parts, operands):
        to, source, wanted = operands[0], operands[1], c_type(parts[-1])
        if to.startswith("{"):
            elements = vector(to)
            width = int(parts[-1][1:]) // len(elements)
            sets = "".join(self.set(element, f"static_cast<u{width}>(whole >> {index * width})", f"u{width}")
                           for index, element in enumerate(elements))
            return f"{{ const u64 whole = {self.value(source, wanted)}; {sets} }}"
        if source.startswith("{"):
            elements = vector(source)
            width = int(parts[-1][1:]) // len(elements)
            joined = " | ".join(f"u64{{{self.value(element, f'u{width}')}}} << {index * width}"
                                for index, element in enumerate(elements))
            return self.set(to, f"static_cast<{wanted}>({joined})", wanted)
        return self.set(to, self.value(source, wanted), wanted)

    def binary(self, parts, operands):
        kind = c_type(parts[-1])
        if kind[0] == "f":
            expression = f"{self.value(operands[1], kind)} {OPERATORS[parts[0]]} {self.value(operands[2], kind)}"
            return self.set(operands[0], expression, kind)
        if kind == "bool":
            left, right = (f"({self.value(operand, kind)} != 0)" for operand in operands[1:])
            return self.set(operands[0], f"{left} {OPERATORS[parts[0]]} {right}", kind)
        if "wide" in parts:
            twice = TWICE[kind]
            expression = " * ".join(f"static_cast<{twice}>({self.value(operand, kind)})" for operand in operands[1:])
            return self.set(operands[0], expression, twice)
        if "hi" in parts:
            if kind != "u64":
                raise Unknown(".".join(parts))
            left, right = (self.value(operand, kind) for operand in operands[1:])
            return self.set(operands[0], f"multiply_high({left}, {right})", kind)
        # Without signs, because a signed overflow is undefined in C++, and PTX wraps around. Division needs the sign.
        sign = kind if parts[0] in ("div", "rem") else unsigned(kind)
        wide = {"u8": "u32", "u16": "u32"}.get(sign, sign)
        left, right = (f"static_cast<{wide}>({self.value(operand, sign)})" for operand in operands[1:])
        return self.set(operands[0], f"static_cast<{kind}>({left} {OPERATORS[parts[0]]} {right})", kind)

    op_add = op_sub = op_mul = op_div = op_rem = op_and = op_or = op_xor = binary

    def op_min(self, parts, operands):
        kind = c_type(parts[-1])
        left, right = (self.value(operand, kind) for operand in operands[1:])
        return self.set(operands[0], f"{left} < {right} ? {left} : {right}", kind)

    def op_mad(self, parts, operands):
        kind = unsigned(c_type(parts[-1]))
        if "lo" not in parts or kind not in ("u32", "u64"):
            raise Unknown(".".join(parts))
        first, second, third = (self.value(operand, kind) for operand in operands[1:])
        return self.set(operands[0], f"static_cast<{kind}>({first} * {second} + {third})", kind)

    def op_neg(self, parts, operands):
        kind = unsigned(c_type(parts[-1]))
        if kind[0] == "f":
            return self.set(operands[0], f"-{self.value(operands[1], kind)}", kind)
        return self.set(operands[0], f"static_cast<{kind}>(0 - {self.value(operands[1], kind)})", kind)

    def op_not(self, parts, operands):
        kind = c_type(parts[-1])
        value = self.value(operands[1], kind)
        return self.set(operands[0], f"!{value}" if kind == "bool" else f"static_cast<{kind}>(~{value})", kind)

    def shift(self, parts, operands):
        kind = c_type(parts[-1])
        function = "shift_left" if parts[0] == "shl" else "shift_right"
        value, by = self.value(operands[1], kind), self.value(operands[2], "u32")
        return self.set(operands[0], f"{function}<{kind}>({value}, {by})", kind)

    op_shl = op_shr = shift

    def op_setp(self, parts, operands):
        kind = c_type(parts[-1])
        if len(operands) != 3 or kind == "bool":
            raise Unknown(".".join(parts))
        left, right = (self.value(operand, kind) for operand in operands[1:])
        return f"{variable(operands[0])} = {left} {COMPARISONS[parts[1]]} {right};"

    def op_selp(self, parts, operands):
        kind = c_type(parts[-1])
        first, second = (self.value(operand, kind) for operand in operands[1:3])
        return self.set(operands[0], f"{variable(operands[3])} ? {first} : {second}", kind)

    def op_cvt(self, parts, operands):
        to, source = parts[-2], parts[-1]
        if to == "f16x2" and source in FLOAT8:
            return self.set(operands[0], f"widen_pair<{FLOAT8[source]}>({self.value(operands[1], 'u16')})", "u32")
        if to in FLOAT8:
            high, low = (self.value(operand, "f32") for operand in operands[1:])
            return self.set(operands[0], f"narrow_pair<{FLOAT8[to]}>({high}, {low})", "u16")
        if (to, source) == ("f32", "f16"):
            return self.set(operands[0], f"port::half_to_float({self.value(operands[1], 'u16')})", "f32")
        if (to, source) == ("f16", "f32"):
            return self.set(operands[0], f"port::float_to_half({self.value(operands[1], 'f32')})", "u16")
        value = self.value(operands[1], c_type(source))
        return self.set(operands[0], f"static_cast<{c_type(to)}>({value})", c_type(to))

    def op_cvta(self, parts, operands):
        value = self.value(operands[1], "u64")
        if "shared" in parts:
            value += " - shared_memory" if "to" in parts else " + shared_memory"
        return self.set(operands[0], value, "u64")

    def op_prmt(self, parts, operands):
        arguments = ", ".join(self.value(operand, "u32") for operand in operands[1:])
        return self.set(operands[0], f"permute({arguments})", "u32")

    def op_bfi(self, parts, operands):
        kind = {"b32": "u32", "b64": "u64"}.get(parts[-1])
        if kind is None:
            raise Unknown(".".join(parts))
        arguments = [self.value(operand, to) for operand, to in zip(operands[1:], (kind, kind, "u32", "u32"))]
        return self.set(operands[0], f"insert_bits({', '.join(arguments)})", kind)

    def op_bar(self, parts, operands):
        if parts[1] == "warp":
            return "port::warp_barrier();"
        Function.barriers += 1
        return f"block_barrier({Function.barriers - 1});"

    def op_vote(self, parts, operands):
        if "any" not in parts:
            raise Unknown(".".join(parts))
        return f"{variable(operands[0])} = port::warp_any({variable(operands[1])});"

    def op_atom(self, parts, operands):
        if parts[1:] != ["relaxed", "sys", "global", "cas", "b64"]:
            raise Unknown(".".join(parts))
        base, offset = self.address(operands[1])
        word = f"static_cast<u64*>(pointer({self.value(base, 'u64')} + {offset}))"
        expected, wanted = (self.value(operand, "u64") for operand in operands[2:])
        return self.set(operands[0], f"port::compare_and_swap({word}, {expected}, {wanted})", "u64")

    # --- memory -------------------------------------------------------------------------------------------------------

    def op_ld(self, parts, operands):
        return self.access(parts, operands[0], *self.address(operands[1]), True)

    def op_st(self, parts, operands):
        return self.access(parts, operands[1], *self.address(operands[0]), False)

    def access(self, parts, operand, base, offset, loads):
        kind = c_type(parts[-1])
        if "param" in parts:
            memory = self.bytes.get(base) or f"pointer({self.value(base, 'u64')})"
            return self.private(operand, memory, offset, kind, loads)
        address = f"{self.value(base, 'u64')} + {offset % (1 << 64)}u"
        if "shared" in parts:
            address = "shared_memory + " + address
        if "local" in parts:
            return self.private(operand, f"pointer({address})", 0, kind, loads)
        if "acquire" in parts or "release" in parts or "relaxed" in parts or "volatile" in parts:
            return self.ordered(parts, operand, address, kind, loads)
        elements = vector(operand)
        if len(elements) == 4 and kind == "u32":
            return self.word16(elements, f"load_generic16({address})", f"store_generic16({address}, ", loads)
        place = "global" if "global" in parts else "generic"
        size = f" * sizeof({kind})"
        if loads:
            return "".join(self.set(element, f"load_{place}<{kind}>({address} + {index}{size})", kind)
                           for index, element in enumerate(elements))
        return "".join(f"store_{place}<{kind}>({address} + {index}{size}, {self.value(element, kind)});"
                       for index, element in enumerate(elements))

    def private(self, operand, memory, offset, kind, loads):
        """Parameters and local memory, which only this thread uses."""
        sets = []
        for index, element in enumerate(vector(operand)):
            place = f"{memory}, {offset} + {index} * sizeof({kind})"
            sets.append(self.set(element, f"load_bytes<{kind}>({place})", kind) if loads else
                        f"store_bytes<{kind}>({place}, {self.value(element, kind)});")
        return " ".join(sets)

    def word16(self, elements, load, store, loads):
        if not loads:
            return store + "Word16{" + ", ".join(self.value(element, "u32") for element in elements) + "});"
        sets = "".join(self.set(element, f"word.{field}", "u32") for field, element in zip("xyzw", elements))
        return f"{{ const Word16 word = {load}; {sets} }}"

    def ordered(self, parts, operand, address, kind, loads):
        """The accesses of port_cuda.h that are ordered or volatile: exactly its instructions, and no others."""
        name = ".".join(parts[1:])
        word = f"static_cast<u64*>(pointer({address}))"
        if loads and name in ("acquire.sys.global.u64", "relaxed.sys.global.u64"):
            return self.set(operand, f"load_{parts[1]}({address})", "u64")
        if not loads and name == "release.sys.global.u64":
            return f"store_release({address}, {self.value(operand, 'u64')});"
        if not loads and name == "relaxed.sys.global.u64":
            return f"port::store_relaxed({word}, {self.value(operand, 'u64')});"
        if not loads and name == "relaxed.cta.u32":
            return f"port::store_together(static_cast<u32*>(pointer({address})), {self.value(operand, 'u32')});"
        if name == "volatile.global.v4.u32":
            # the lines of LL128 are accessed by 8 threads together, which PTX does not show
            line = "run_ll128" in self.name
            load = f"port::load_line(pointer({address}))" if line else f"load_volatile({address})"
            store = "port::store_line" if line else "port::store16_volatile"
            return self.word16(vector(operand), load, f"{store}(pointer({address}), ", loads)
        raise Unknown(".".join(parts))


def functions(text):
    """The functions that have a body, and are kernels of ours or called by kernels."""
    text = re.sub(r"//[^\n]*", "", text)
    outside = re.sub(r"\{.*?\n\}", "", text, flags=re.S)
    Function.shared_arrays = dict(re.findall(SHARED, outside))
    head = (r"(?:\.visible\s+|\.weak\s+)?\.(entry|func)\s*(?:\(([^)]*)\))?\s*([\w$]+)\s*\(([^)]*)\)\s*"
            r"(?:\.\w+[^{;]*)?([{;])")
    found = []
    for match in re.finditer(head, text):
        if match.group(5) == ";":
            continue
        depth, end = 1, match.end()
        while depth:
            brace = re.compile(r"[{}]").search(text, end)
            depth += 1 if brace.group() == "{" else -1
            end = brace.end()
        function = Function(match.group(1), match.group(3), match.group(2), match.group(4), text[match.end():end - 1])
        if function.kind == "func" or function.name in KERNELS:
            found.append(function)
    return found


def main(ptx, to):
    with open(ptx, encoding="utf-8") as file:
        found = functions(file.read())
    missing = set(KERNELS) - {function.name for function in found}
    if missing:
        raise Unknown(f"there is no kernel {', '.join(sorted(missing))}")
    lines = ["// Made by translate.py.", '#include "tests/device/ptx/ptx_machine.h"', "namespace tutti::ptx {"]
    lines += [function.signature() + ";" for function in found]
    for function in found:
        lines += function.translate()
    lines.append("}  // namespace tutti::ptx")
    with open(to, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print(f"{len(found)} functions, {len(lines)} lines, {Function.barriers} barriers of blocks")


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2])
    except Unknown as error:
        sys.exit(f"translate.py: not known: {error}")
