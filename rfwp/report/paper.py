"""The printed numbers of every table of the paper, typed once, and which preset and metric each of them belongs to.

In the texts below a line is a row: its preset, or a game and `*` where the columns are the models; then its cells: `mean ± std`,
`mean`, or `-` where nothing is printed.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from rfwp.presets import ALIASES, find


@dataclass(frozen=True)
class Cell:
    """One printed number, as it is printed: accuracies in %, parameters in millions."""

    preset: str
    metric: str
    """As a line of results names it."""
    mean: float | None = None
    std: float | None = None
    digits: int = 1
    """Behind the point, as printed."""


@dataclass(frozen=True)
class Column:
    """What the cells below a heading are."""

    title: str
    metric: str
    table: str = ""
    """The table of presets, where it changes from column to column."""
    split: Literal["test", "valid"] = "test"
    statistic: Literal["mean", "lowest", "highest"] = "mean"
    """Over the seeds."""
    higher_is_better: bool = True
    scale: float = 1.0
    """From a line of results to the unit that is printed."""


@dataclass(frozen=True)
class Row:
    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class PaperTable:
    """A table with its number in the paper."""

    id: str
    title: str
    corner: str
    """The heading of the rows' titles."""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def presets(self) -> list[str]:
        """Those with a printed result, in the order of the table."""
        cells = (cell for row in self.rows for cell in row.cells)
        return list(dict.fromkeys(c.preset for c in cells if c.mean is not None and c.metric != "parameters"))


def _accuracy(title: str, metric: str, table: str = "", **others: str) -> Column:
    return Column(title, metric, table, scale=100.0, **others)  # type: ignore[arg-type]


PERPLEXITIES = (
    Column("valid", "perplexity", split="valid", higher_is_better=False),
    Column("test", "perplexity", higher_is_better=False),
)
PARAMETERS = Column("parameters, M", "parameters", higher_is_better=False, scale=1e-6)

TABLE_1 = """
lm/transformer             33.0    34.1
lm/linear-transformer      37.1    38.3
lm/delta-net               34.1    35.2
lm/delta-mlp               35.8    36.8
lm/delta-delta-net         34.0    35.2
lm/delta-rnn               33.8    35.0
lm/delta-lstm              32.6    33.8
lm/rdn                     34.1    35.2
lm-full-context/delta-rnn  31.8    32.8
lm-full-context/rdn        32.5    33.6
"""

TABLE_2_COLUMNS = (
    _accuracy("code execution, 3 variables", "sequence accuracy", "code-execution-3"),
    _accuracy("code execution, 5 variables", "sequence accuracy", "code-execution-5"),
    _accuracy("ListOps, depth 10", "accuracy", "listops-10"),
    _accuracy("ListOps, depth 15", "accuracy", "listops-15"),
)
TABLE_2 = """
lstm                99.0 ± 0.1    93.2 ±  6.1    88.5 ± 2.9    24.4 ± 1.1
transformer         71.8 ± 2.6    35.4 ± 28.2    79.1 ± 0.9    75.3 ± 0.4
linear-transformer   0.0 ± 0.0     0.0 ±  0.0    64.0 ± 0.3    64.4 ± 0.4
delta-net           90.7 ± 2.7    61.4 ± 20.0    85.7 ± 1.8    77.6 ± 1.4
delta-rnn           90.8 ± 1.7    85.1 ±  1.9    83.6 ± 1.2    78.0 ± 1.0
rdn                 92.6 ± 2.2    76.3 ± 17.6    83.2 ± 0.9    79.2 ± 1.4
"""

TABLE_3_GAMES = ("Battlezone", "Berzerk", "Gopher", "Seaquest")
TABLE_3 = """
atari/lstm       24,873 ± 1,240    1,150 ± 92    124,914 ± 22,422    12,643 ± 1,627
atari/rdn        10,980 ± 1,104      348 ± 17     86,008 ± 11,815     4,373 ±   504
atari-large/rdn  28,273 ± 5,333      346 ±  9    118,273 ± 14,872    14,601 ±   712
"""

TABLE_4 = """
lm/delta-rnn-a     35.6    36.7
lm/delta-rnn-b     33.8    35.0
lm/delta-lstm-a    38.5    39.9
lm/delta-lstm-b    34.2    35.2
lm/delta-lstm-c    33.5    34.7
lm/delta-lstm-d    32.6    33.8
lm/delta-mlp-a     36.8    37.9
lm/delta-mlp-b     35.8    36.8
"""

TABLE_5_COLUMNS = (
    _accuracy("3 variables", "print accuracy", "code-execution-3", split="valid"),
    _accuracy("5 variables", "print accuracy", "code-execution-5", split="valid"),
)
TABLE_5 = """
lstm                99.9 ± 0.0    99.6 ±  0.4
transformer         98.6 ± 0.2    75.5 ± 31.0
linear-transformer  24.6 ± 0.6    20.7 ±  1.4
delta-net           99.5 ± 0.1    97.2 ±  2.0
delta-rnn           99.5 ± 0.0    99.3 ±  0.2
rdn                 99.6 ± 0.1    98.6 ±  1.4
"""

TABLE_6_COLUMNS = (
    _accuracy("mean", "sequence accuracy"),
    _accuracy("lowest", "sequence accuracy", statistic="lowest"),
    _accuracy("highest", "sequence accuracy", statistic="highest"),
)
# The last two rows are not printed; of this Transformer the text says that it stays at 0 %.
TABLE_6 = """
code-execution-5/lstm                     93.2 ±  6.1    84.7    98.5
code-execution-5/lstm-512                 97.7 ±  1.1    96.1    98.7
code-execution-5/delta-net                61.4 ± 20.0    26.2    85.7
code-execution-5/delta-rnn                85.1 ±  1.9    83.1    88.6
code-execution-5/rdn                      76.3 ± 17.6    40.2    92.5
code-execution-5-thin/delta-net           62.7 ± 36.3     0.1    97.3
code-execution-5-thin/delta-rnn           94.1 ±  2.7    88.0    95.8
code-execution-5-thin/rdn                 85.0 ±  3.8    78.9    89.0
code-execution-5-thin/transformer          -              -       -
code-execution-5-thin/linear-transformer   -              -       -
"""

TABLE_7 = """
listops-15/lstm       24.4 ±  1.1
listops-15/lstm-1024  24.4 ±  0.7
listops-15/lstm-2048  35.9 ± 13.0
listops-15/lstm-4096  72.2 ±  1.6
"""

TABLE_8_GAMES = ("Berzerk", "Gopher", "Seaquest", "Space Invaders")
# The LSTM's 1.5 M is printed only here; elsewhere it is 1.6 M, which is what the model has.
TABLE_8 = """
atari/lstm               1.5    1,150 ± 92    124,914 ± 22,422    12,643 ± 1,627    137,657 ±  2,276
atari/feedforward        1.1      343 ± 23     61,350 ±  3,891       667 ±     1     53,455 ±  6,694
atari/feedforward-gated  1.7      320 ± 29     42,851 ±  7,653       660 ±     0     95,629 ± 11,991
"""

ATARI_MODELS = ("feedforward", "lstm", "linear-transformer", "delta-net", "rdn", "delta-rnn")
TABLE_9 = """
Alien *            1,985 ±     90      846 ±     81     2,135 ±   184     4,704 ±    452     1,754 ±     48     3,420 ±    834
Amidar *             208 ±     11      233 ±     10       320 ±    16       339 ±     28       368 ±     23       216 ±     14
Assault *          4,658 ±  2,147    7,551 ±  1,774     2,764 ±   380     5,710 ±  2,643     8,088 ±  2,851     7,503 ±  2,794
Battlezone *      12,267 ±    620    6,327 ±    380       933 ±   351     6,780 ±    461     7,373 ±    431     7,040 ±  1,098
Berzerk *            326 ±     21      474 ±     17       323 ±     6       331 ±     24       336 ±     27       305 ±      8
Bank Heist *         323 ±     13      327 ±     11       309 ±    11       321 ±      8       316 ±     10       324 ±     10
Beam Rider *       9,932 ±  1,592   13,638 ±  1,571     6,695 ±   941     9,185 ±    630    18,156 ±  1,522    13,429 ±    884
Demon Attack *    36,255 ±  3,566   31,447 ±  1,850     8,939 ±   950    31,359 ±  3,362    41,726 ±  6,308    36,807 ±  3,700
Gopher *          10,356 ±    378   13,765 ±    808     8,197 ± 1,720     8,707 ±  2,381    19,775 ±  1,448    25,445 ±  1,963
James Bond *       2,942 ±     56    3,020 ±     68     2,425 ±   174     3,338 ±    137     2,979 ±    176   2,929.3 ±    408
Kung-Fu Master *   5,449 ±     82   15,216 ±    818     3,722 ±   330     8,095 ±    240     9,201 ±    384     7,388 ±    491
Ms Pacman *        1,737 ±     53    1,676 ±     86     1,647 ±   101     2,116 ±     30     2,584 ±    121     2,287 ±     32
Pong *                21 ±      0       21 ±      0        21 ±     0        21 ±      0        21 ±      0        21 ±      0
Q*bert *           4,967 ±    266    3,905 ±    252     4,693 ±   195     6,248 ±    204     5,897 ±    357     6,626 ±    240
Robotank *           7.1 ±    0.7      7.6 ±    0.7       4.8 ±   0.3       7.2 ±    0.7       7.5 ±    0.8       7.0 ±    0.5
Seaquest *           469 ±      1      708 ±      1     1,812 ±    61     8,853 ±    937       686 ±      1     5,123 ±    335
Space Invaders *  48,150 ±  7,233   12,461 ±  1,624     2,345 ±    74    25,769 ± 10,156    27,213 ±  3,359     2,847 ±     10
Star Gunner *      9,397 ±  2,193    8,337 ±  1,094     8,915 ±   713    11,599 ±  3,454     9,737 ±  1,396     9,523 ±  2,214
Up'n Down *      185,632 ± 16,490  155,847 ± 15,318    57,435 ± 2,283   120,806 ± 16,261   126,140 ± 19,078   148,759 ± 28,492
Zaxxon *           4,863 ±    872    2,737 ±    121     2,719 ±   701     4,265 ±    263     5,285 ±    504     3,903 ±    648
"""
# Zaxxon's Delta Net is printed as 1,0523.
TABLE_10 = """
Alien *            3,816 ±    139    6,184 ±    558     4,751 ±    530    15,133 ±  1,122    11,220 ±    621    12,177 ±    968
Amidar *             433 ±     27      349 ±     22       646 ±     32       432 ±     27       832 ±     11       269 ±     17
Assault *          6,407 ±  3,430    7,977 ±  2,611     6,465 ±  1,437     7,525 ±  1,703     8,647 ±  3,061     7,670 ±    952
Battlezone *      60,527 ± 12,345   24,873 ±  1,240     2,667 ±    386    19,907 ±  1,409    10,980 ±  1,104    17,180 ±  1,493
Berzerk *            343 ±     23    1,150 ±     92       480 ±     38       333 ±      7       348 ±     17       332 ±     17
Bank Heist *         331 ±     10      327 ±     11       317 ±      8       321 ±      8       328 ±     10       328 ±      8
Beam Rider *      21,873 ±  2,000   18,024 ±    933    22,444 ±    755    28,594 ±  5,508    23,934 ±  2,292    28,973 ±  3,663
Demon Attack *    74,904 ± 10,941   69,750 ±  9,593    57,715 ±  5,009    78,601 ± 16,907    67,039 ±  5,714    92,205 ± 17,933
Gopher *          61,350 ±  3,891  124,914 ± 22,422    48,261 ±  7,727    86,168 ±  5,069    86,008 ± 11,815   101,974 ± 10,200
James Bond *      56,459 ±  7,292   25,106 ±  5,889    16,223 ±  1,118    54,336 ±  7,165    32,923 ±  7,968    53,344 ±  4,768
Kung-Fu Master *  12,292 ±    613   24,447 ±    407    13,969 ±    803    15,064 ±    929    20,319 ±    363    15,068 ±    513
Ms Pacman *        2,499 ±    141    3,431 ±    197     3,052 ±    128     4,180 ±    139     4,168 ±    585     3,500 ±    205
Pong *                21 ±      0       21 ±      0        21 ±      0        21 ±      0        21 ±      0        21 ±      0
Q*bert *           8,655 ±    371   11,513 ±    910     8,389 ±    349   521,839 ± 36,192   987,275 ±      0    10,381 ±  1,259
Robotank *           7.8 ±    0.8      7.6 ±    0.7       7.7 ±    0.9       7.5 ±    0.4       7.9 ±    0.6       7.5 ±    0.5
Seaquest *           667 ±      1   12,643 ±  1,627    12,425 ±  1,910    12,790 ±  1,512     4,373 ±    504    13,898 ±  1,674
Space Invaders *  53,455 ±  6,694  137,657 ±  2,276     2,333 ±    110    86,132 ±  5,483   170,871 ±     80    58,181 ± 14,987
Star Gunner *     11,564 ±  4,598   12,194 ±  7,038    12,035 ±  6,995    11,734 ±  6,827    13,026 ±  6,431    11,635 ±  6,065
Up'n Down *      185,632 ± 16,490  231,157 ± 10,603   252,555 ± 16,331   208,563 ± 22,803   240,003 ± 26,849   159,296 ± 25,013
Zaxxon *          11,960 ±    538   11,619 ±    663     7,371 ±    932    10,523 ±    568     9,126 ±    313    11,365 ±    678
"""


@cache
def tables() -> dict[str, PaperTable]:
    """Every table of the paper by its id, `table-1` to `table-10`."""
    at_200m = [tuple(Column(game, _score(game, 200)) for game in games) for games in (TABLE_3_GAMES, TABLE_8_GAMES)]
    listops = _accuracy("accuracy", "accuracy")
    found = [
        _by_model(1, "Language modelling on WikiText-103, perplexity", PERPLEXITIES, TABLE_1, counted=True),
        _by_model(2, "Code execution and sequential ListOps, test accuracy in %", TABLE_2_COLUMNS, TABLE_2),
        _by_model(3, "Atari, a larger RDN where the LSTM dominates, score after 200 M steps", at_200m[0], TABLE_3),
        _by_model(4, "Language modelling, versions of the fast nets, perplexity", PERPLEXITIES, TABLE_4, counted=True),
        _by_model(5, "Code execution, validation accuracy of what is printed in %", TABLE_5_COLUMNS, TABLE_5),
        _by_model(6, "Code execution with 5 variables, test accuracy in %", TABLE_6_COLUMNS, TABLE_6, counted=True),
        _by_model(7, "Sequential ListOps of depth 15, sizes of the LSTM, test accuracy in %", (listops,), TABLE_7),
        _by_model(8, "Atari, a larger feedforward net, score after 200 M steps", (PARAMETERS, *at_200m[1]), TABLE_8),
        _by_game(9, 50, TABLE_9),
        _by_game(10, 200, TABLE_10),
    ]
    return {table.id: table for table in found}


def _by_model(number: int, title: str, columns: tuple[Column, ...], text: str, counted: bool = False) -> PaperTable:
    """Rows are presets. `counted`: a last column with the printed numbers of parameters, which the presets hold."""
    rows = []
    for line in text.strip().splitlines():
        name, cells = _split(line)
        names = [find(f"{column.table}/{name}" if column.table else name).name for column in columns]
        row = [_cell(text, preset, column.metric) for text, preset, column in zip(cells, names, columns, strict=True)]
        if counted:
            row.append(Cell(names[0], PARAMETERS.metric, _millions(find(names[0]).printed_parameters)))
        rows.append(Row(_title(name if name in ALIASES else names[0]), tuple(row)))
    return PaperTable(f"table-{number}", title, "model", columns + (PARAMETERS,) * counted, tuple(rows))


def _by_game(number: int, steps: int, text: str) -> PaperTable:
    """Rows are games, columns are models."""
    rows = []
    for line in text.strip().splitlines():
        game, cells = _split(line)
        models = zip(cells, ATARI_MODELS, strict=True)
        rows.append(Row(game, tuple(_cell(text, f"atari/{model}", _score(game, steps)) for text, model in models)))
    columns = tuple(Column(find(f"atari/{model}").title, "score") for model in ATARI_MODELS)
    return PaperTable(f"table-{number}", f"Atari, score after {steps} M steps", "game", columns, tuple(rows))


def _score(game: str, steps: int) -> str:
    return f"{game}, score after {steps} M steps"


def _split(line: str) -> tuple[str, list[str]]:
    """`name  a ± b  c` -> name, ["a ± b", "c"]; a name with spaces ends with ` *`."""
    name, star, rest = line.partition(" * ")
    if not star:
        name, _, rest = line.partition(" ")
    cells: list[str] = []
    words = iter(rest.split())
    for word in words:
        if word == "±":
            cells[-1] += f" ± {next(words)}"
        else:
            cells.append(word)
    return name, cells


def _cell(text: str, preset: str, metric: str) -> Cell:
    if text == "-":
        return Cell(preset, metric)
    mean, _, std = text.replace(",", "").partition(" ± ")
    return Cell(preset, metric, float(mean), float(std) if std else None, len(mean.partition(".")[2]))


def _millions(printed: str) -> float:
    """`44.0 M` -> 44.0, `405 K` -> 0.405"""
    number, unit = printed.split()
    return float(number) / {"M": 1, "K": 1000}[unit]


def _title(preset: str) -> str:
    """As printed; but the thin models of Table 6 share their printed names with the wide ones."""
    title = find(preset).title
    if preset in ALIASES:
        # Table 1 does not print the version
        return title.rpartition(" ")[0]
    return f"{title}, 8 thin layers" if preset.startswith("code-execution-5-thin/") else title
