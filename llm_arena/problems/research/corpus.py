"""A corpus of documents that seats search and read by two tools: the embedded one, or one's own.

The embedded corpus is the encyclopaedia of an invented world (`world`), one for each seed. One's own is a folder
of `.txt` and `.md` files (the id is the path inside the folder, the title its heading or the file's name), or a file of
JSON lines `{"id": ..., "title": ..., "text": ...}`; both in UTF-8.

Documents are cut into pages of at most `PAGE` characters. `search` ranks pages by BM25 (the package bm25s, in the extra
`research`), `open` shows one page. Results are texts and depend on nothing but the corpus and the call: scores are
rounded before they are compared, and equal ones stand in the order of ids and pages, so that a replay on another
machine gives the same.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llm_arena.errors import UsageError, missing_extra
from llm_arena.parsing import one_line, printable
from llm_arena.problems.research.lines import count
from llm_arena.problems.research.world import KEPT, world
from llm_arena.problems.sources.questions import is_text
from llm_arena.types import Json

PAGE = 1200
"""Characters of a page, at most."""
HITS = 5
"""Results of a search, at most."""
SNIPPET = 160
"""Characters of a snippet, at most."""
MAX_DOCUMENTS = 50_000
MAX_BYTES = 64 * 1024 * 1024
"""Of all files of a corpus together. So much takes about half a minute to be indexed, once in a process."""
MAX_TITLE = 200
"""Characters of a title that are shown."""
MAX_QUERY = 400
"""Characters of a query that are read."""

TOOLS: list[Json] = [
    {
        "name": "search",
        "description": "Finds pages that hold the words of the query. Returns ids, titles and snippets.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
    {
        "name": "open",
        "description": "Shows the text of the document with this id; long ones have several pages.",
        "parameters": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "page": {"type": "integer"}},
            "required": ["id"],
        },
    },
]
"""What `Corpus.call` takes."""

_WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_LITTLE = """
a an and are as at be by did do does for from had has have how i in is it its of on or that the their this to was were
what when where which who whose why will with
"""
_STOP_WORDS = frozenset(_LITTLE.split())
_BAD_ID = re.compile(r'[\x00-\x1f\x7f"\\<>\[\]]|^\s|\s$|^$')


class Document(msgspec.Struct, frozen=True):
    """One document."""

    id: str
    title: str
    text: str


class Corpus:
    """Documents, their pages, and an index of these.

    Args:
        documents: with different ids; at least one.
        sha256: digest of what they were read from.

    Raises:
        MissingExtra: bm25s is not installed.
    """

    def __init__(self, documents: Sequence[Document], sha256: str) -> None:
        require_bm25s()
        self.sha256 = sha256
        self.documents = {document.id: document for document in sorted(documents, key=lambda document: document.id)}
        self.pages = {document.id: _cut(document.text) for document in self.documents.values()}
        self._places = [(id, page) for id, pages in self.pages.items() for page in range(len(pages))]
        tokens = [words(f"{self.documents[id].title}\n{self.pages[id][page]}") for id, page in self._places]
        bm25s: Any = importlib.import_module("bm25s")  # optional, and half typed
        self._index = bm25s.BM25()  # k1 = 1.5, b = 0.75, Lucene's variant
        # a corpus without a single word has nothing to index
        self._index.index([[*page, "\x00"] for page in tokens], show_progress=False)

    def call(self, name: str, arguments: dict[str, Json]) -> str:
        """Returns the result of a tool call that fits `TOOLS`, as text without control characters."""
        if name == "search":
            return self.search(arguments["query"])
        return self.open(arguments["id"], arguments.get("page", 1))

    def search(self, query: str) -> str:
        """Returns the best pages, a line each: `[id] title | snippet`, or what is wrong with the query."""
        asked = list(dict.fromkeys(words(query[:MAX_QUERY])))
        known = [word for word in asked if word in self._index.vocab_dict]
        if not known:
            return (
                "Nothing found: no document holds any of these words." if asked else "Nothing found: give some words."
            )
        scores = np.round(np.asarray(self._index.get_scores(known), dtype=np.float64), 4)
        least = np.partition(scores, -HITS)[-HITS] if len(scores) > HITS else 0.0
        places = np.flatnonzero((scores >= least) & (scores > 0))
        best: list[int] = places[np.argsort(-scores[places], kind="stable")][:HITS].tolist()
        return "\n".join(self._line(*self._places[at], set(known)) for at in best)

    def open(self, id: str, page: int = 1) -> str:
        """Returns a page with its heading, or what is wrong with the call."""
        if id not in self.documents:
            return f"There is no document {printable(id)[:100]!r}. Search first, then open an id from the results."
        pages = self.pages[id]
        if not 1 <= page <= len(pages):
            return f"{one_line(id)} has {count(len(pages), 'page')}; there is no page {page}."
        return f"{self._heading(id, page - 1)}\n{printable(pages[page - 1])}"

    def _heading(self, id: str, page: int) -> str:
        of = f" (page {page + 1} of {len(self.pages[id])})" if len(self.pages[id]) > 1 else ""
        return f"[{one_line(id)}] {one_line(self.documents[id].title)[:MAX_TITLE]}{of}"

    def _line(self, id: str, page: int, asked: set[str]) -> str:
        sentences = [part for part in _SENTENCE_END.split(self.pages[id][page]) if part.strip()] or [""]
        snippet = one_line(max(sentences, key=lambda sentence: len(asked & set(words(sentence)))))
        return f"{self._heading(id, page)} | {snippet if len(snippet) <= SNIPPET else snippet[: SNIPPET - 1] + '…'}"


def words(text: str) -> list[str]:
    """Returns the words of `text` that count: case and a plural s don't.

    >>> words("Who founded the Vessel Works?")
    ['founded', 'vessel', 'work']
    """
    found = _WORD.findall(text.casefold())
    return [
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in found
        if word not in _STOP_WORDS
    ]


def require_bm25s() -> None:
    """Raises a `MissingExtra` if the extra `research` is not installed."""
    if importlib.util.find_spec("bm25s") is None:
        raise missing_extra("searching a corpus", "bm25s", "research")


def embedded(world_seed: int = 0) -> Corpus:
    """Returns the encyclopaedia of a world; its index is made once in a process."""
    return _embedded(world_seed)


@functools.lru_cache(maxsize=KEPT)
def _embedded(world_seed: int) -> Corpus:
    documents = [Document(article.id, article.title, article.text) for article in world(world_seed).articles]
    return Corpus(documents, hashlib.sha256(msgspec.json.encode(documents)).hexdigest())


def load(path: str) -> Corpus:
    """Returns the corpus at `path`; read and indexed once in a process as long as its files don't change.

    Raises:
        UsageError: nothing is there, it is too large, or a document can't be read; the message says which.
        MissingExtra: bm25s is not installed.
    """
    if not isinstance(path, str) or not path.strip() or "\x00" in path or not is_text(path):
        raise UsageError(f"corpus={path!r:.100}; expected the path of a folder or of a .jsonl file")
    root = Path(path)
    files = _files(root)
    for file in files:
        if not is_text(str(file)):  # bytes that are no UTF-8
            raise UsageError(f"the name of the file {str(file)!r} can't be written as text; rename it")
    stamp = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    total = sum(size for _, size, _ in stamp)
    if total > MAX_BYTES:
        raise UsageError(f"the corpus {path} has {total:,} bytes; expected at most {MAX_BYTES:,}: leave something out")
    return _read(root, stamp)


def _files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise UsageError(f"there is no corpus at {root}; expected a folder of .txt and .md files, or a .jsonl file")
    files = sorted(file for file in root.rglob("*") if file.suffix in (".txt", ".md") and file.is_file())
    if not files:
        raise UsageError(f"the folder {root} has no .txt or .md file; name a folder that has some, or a .jsonl file")
    return files


@functools.lru_cache(maxsize=8)
def _read(root: Path, stamp: tuple[tuple[str, int, int], ...]) -> Corpus:
    """Reads the files named in `stamp`, which is also the key of the cache."""
    digest = hashlib.sha256()
    documents: list[Document] = []
    for name, _, _ in stamp:
        file = Path(name)
        content = file.read_bytes()
        if root.is_file():
            digest.update(content)
            documents.extend(_lines(file, content))
        else:
            inside = file.relative_to(root).as_posix()
            digest.update(f"{inside}\x00{len(content)}\x00".encode() + content)
            text = _decode(file, content)
            documents.append(_checked(Document(inside, _title(file, text), text), str(file)))
    _check_all(root, documents)
    return Corpus(documents, digest.hexdigest())


def _lines(file: Path, content: bytes) -> Iterator[Document]:
    # by newlines alone: other line separators may stand inside a JSON string
    for number, line in enumerate(_decode(file, content).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            document = msgspec.json.decode(line, type=Document)
        except msgspec.MsgspecError as error:
            raise UsageError(
                f'{file}, line {number}: {error}; expected one JSON object with the strings "id", "title" and "text"'
            ) from error
        yield _checked(document, f"{file}, line {number}")


def _decode(file: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 ({error.reason} at byte {error.start}); convert it") from error


def _checked(document: Document, where: str) -> Document:
    if _BAD_ID.search(document.id) or len(document.id) > 200:
        raise UsageError(
            f"{where}: the id is {document.id!r:.100}; expected 1 to 200 characters without quotes, brackets < > [ ], "
            "backslashes, control characters, or blanks at its ends"
        )
    if not all(map(is_text, (document.id, document.title, document.text))):
        raise UsageError(f"{where}: the document {document.id!r} holds half of a UTF-16 pair (\\ud800 to \\udfff)")
    if not document.text.strip():
        raise UsageError(f"{where}: the document {document.id!r} has no text; leave it out")
    return document


def _check_all(root: Path, documents: Sequence[Document]) -> None:
    if not documents:
        raise UsageError(f"the corpus {root} has no document; expected at least one")
    if len(documents) > MAX_DOCUMENTS:
        raise UsageError(f"the corpus {root} has {len(documents):,} documents; expected at most {MAX_DOCUMENTS:,}")
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise UsageError(f"the corpus {root} has two documents with the id {document.id!r}; ids are unique")
        seen.add(document.id)


def _title(file: Path, text: str) -> str:
    first = text.strip().partition("\n")[0]
    return first.lstrip("#").strip() if first.startswith("#") and first.strip("# ") else file.stem


def _cut(text: str) -> list[str]:
    """Cuts a text into pages, between paragraphs or sentences where it can."""
    pages: list[str] = []
    rest = text.strip()
    while len(rest) > PAGE:
        head = rest[:PAGE]
        cut = max(
            (head.rfind(mark) + len(mark) for mark in ("\n\n", "\n", ". ") if head.rfind(mark) > PAGE // 2), default=0
        )
        cut = cut or (head.rfind(" ") + 1 if head.rfind(" ") > 0 else PAGE)
        pages.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*pages, rest]


__all__ = ["HITS", "PAGE", "TOOLS", "Corpus", "Document", "embedded", "load", "require_bm25s", "words"]
