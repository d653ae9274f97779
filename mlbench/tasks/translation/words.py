"""The words of the phrasebook: the English, and all that German inflection asks of its translation."""

from typing import NamedTuple


class Noun(NamedTuple):
    one: str  # English
    many: str
    eine: str  # German singular, without genitive; weak nouns are left out
    viele: str
    gender: str  # m, f, n


class Verb(NamedTuple):
    """An English verb (third person, plural, participle) and its German one.

    `prefix` is split off in main clauses. `case` is the object's, "" for verbs without one. `object` says
    what it may be: person, thing or any.
    """

    does: str
    do: str
    done: str
    tut: str
    tun: str
    getan: str
    prefix: str = ""
    case: str = "acc"
    object: str = "any"
    auxiliary: str = "haben"
    particle: str = ""  # English, behind the object: picks the key up


def _nouns(text: str) -> tuple[Noun, ...]:
    return tuple(Noun(*line.split()) for line in text.strip().splitlines())


PEOPLE = _nouns("""
teacher teachers Lehrer Lehrer m
doctor doctors Arzt Ärzte m
gardener gardeners Gärtner Gärtner m
king kings König Könige m
son sons Sohn Söhne m
dog dogs Hund Hunde m
woman women Frau Frauen f
aunt aunts Tante Tanten f
daughter daughters Tochter Töchter f
sister sisters Schwester Schwestern f
queen queens Königin Königinnen f
cat cats Katze Katzen f
child children Kind Kinder n
girl girls Mädchen Mädchen n
horse horses Pferd Pferde n
""")

THINGS = _nouns("""
table tables Tisch Tische m
chair chairs Stuhl Stühle m
letter letters Brief Briefe m
key keys Schlüssel Schlüssel m
coat coats Mantel Mäntel m
carpet carpets Teppich Teppiche m
lamp lamps Lampe Lampen f
door doors Tür Türen f
clock clocks Uhr Uhren f
bag bags Tasche Taschen f
box boxes Kiste Kisten f
cup cups Tasse Tassen f
house houses Haus Häuser n
book books Buch Bücher n
picture pictures Bild Bilder n
window windows Fenster Fenster n
knife knives Messer Messer n
shirt shirts Hemd Hemden n
""")

# A thing's first half and the form it takes in a German compound: kitchen table, Küchentisch.
HALVES = {
    "kitchen": "Küchen",
    "garden": "Garten",
    "school": "Schul",
    "winter": "Winter",
    "travel": "Reise",
    "office": "Büro",
    "summer": "Sommer",
    "toy": "Spielzeug",
}

ADJECTIVES = {
    "old": "alt",
    "new": "neu",
    "small": "klein",
    "big": "groß",
    "red": "rot",
    "green": "grün",
    "black": "schwarz",
    "beautiful": "schön",
    "heavy": "schwer",
    "good": "gut",
    "friendly": "freundlich",
    "strong": "stark",
}

TRANSITIVE = (
    Verb("sees", "see", "seen", "sieht", "sehen", "gesehen"),
    Verb("finds", "find", "found", "findet", "finden", "gefunden"),
    Verb("paints", "paint", "painted", "malt", "malen", "gemalt"),
    Verb("buys", "buy", "bought", "kauft", "kaufen", "gekauft", object="thing"),
    Verb("sells", "sell", "sold", "verkauft", "verkaufen", "verkauft", object="thing"),
    Verb("repairs", "repair", "repaired", "repariert", "reparieren", "repariert", object="thing"),
    Verb("looks for", "look for", "looked for", "sucht", "suchen", "gesucht"),
    Verb("visits", "visit", "visited", "besucht", "besuchen", "besucht", object="person"),
    Verb("helps", "help", "helped", "hilft", "helfen", "geholfen", case="dat", object="person"),
    Verb("thanks", "thank", "thanked", "dankt", "danken", "gedankt", case="dat", object="person"),
    Verb("looks at", "look at", "looked at", "sieht", "sehen", "gesehen", "an"),
    Verb("invites", "invite", "invited", "lädt", "laden", "geladen", "ein", object="person"),
    Verb("calls", "call", "called", "ruft", "rufen", "gerufen", "an", object="person"),
    Verb("picks", "pick", "picked", "holt", "holen", "geholt", "ab", particle="up"),
    Verb("takes", "take", "taken", "nimmt", "nehmen", "genommen", "mit", particle="along"),
    Verb("throws", "throw", "thrown", "wirft", "werfen", "geworfen", "weg", "acc", "thing", particle="away"),
    Verb("puts", "put", "put", "stellt", "stellen", "gestellt", "zurück", "acc", "thing", particle="back"),
)
INTRANSITIVE = (
    Verb("sleeps", "sleep", "slept", "schläft", "schlafen", "geschlafen", case=""),
    Verb("sings", "sing", "sung", "singt", "singen", "gesungen", case=""),
    Verb("laughs", "laugh", "laughed", "lacht", "lachen", "gelacht", case=""),
    Verb("waits", "wait", "waited", "wartet", "warten", "gewartet", case=""),
    Verb("gets up", "get up", "got up", "steht", "stehen", "gestanden", "auf", "", auxiliary="sein"),
    Verb(
        "comes back", "come back", "come back", "kommt", "kommen", "gekommen", "zurück", "", auxiliary="sein"
    ),
    Verb("goes out", "go out", "gone out", "geht", "gehen", "gegangen", "aus", "", auxiliary="sein"),
)
DITRANSITIVE = (  # the thing, then "to" the person; in German the person, then the thing
    Verb("gives", "give", "given", "gibt", "geben", "gegeben"),
    Verb("shows", "show", "shown", "zeigt", "zeigen", "gezeigt"),
    Verb("sends", "send", "sent", "schickt", "schicken", "geschickt"),
)
SAYING = (
    Verb("says", "say", "said", "sagt", "sagen", "gesagt"),
    Verb("believes", "believe", "believed", "glaubt", "glauben", "geglaubt"),
    Verb("knows", "know", "known", "weiß", "wissen", "gewusst"),
)

# English for one and many, German for one and many, with the infinitive behind all else.
MODALS = (
    ("must", "must", "muss", "müssen"),
    ("can", "can", "kann", "können"),
    ("wants to", "want to", "will", "wollen"),
    ("should", "should", "soll", "sollen"),
)
AUXILIARIES = {"haben": ("hat", "haben"), "sein": ("ist", "sind")}
CONJUNCTIONS = {"because": "weil", "although": "obwohl", "while": "während", "before": "bevor"}
TIMES = {"today": "heute", "now": "jetzt", "tomorrow": "morgen", "on Sunday": "am Sonntag"}
FREQUENCIES = {"often": "oft", "never": "nie", "always": "immer"}
PLACES = {"behind": "hinter", "next to": "neben", "with": "mit"}  # all with the dative here
NUMBERS = {"two": "zwei", "three": "drei", "four": "vier"}

# Endings by case and gender (p: plural). `the` is spelt out; the others add to a stem.
THE = {
    "nom": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "p": "den"},
}
STEMS = {"a": "ein", "my": "mein", "our": "unser", "no": "kein"}
STEM_ENDINGS = {
    "nom": {"m": "", "f": "e", "n": "", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
}
AFTER_THE = {
    "nom": {"m": "e", "f": "e", "n": "e", "p": "en"},
    "acc": {"m": "en", "f": "e", "n": "e", "p": "en"},
    "dat": {"m": "en", "f": "en", "n": "en", "p": "en"},
}
AFTER_STEM = {
    "nom": {"m": "er", "f": "e", "n": "es", "p": "en"},
    "acc": {"m": "en", "f": "e", "n": "es", "p": "en"},
    "dat": {"m": "en", "f": "en", "n": "en", "p": "en"},
}
AFTER_NUMBER = {"nom": {"p": "e"}, "acc": {"p": "e"}, "dat": {"p": "en"}}
PRONOUNS = {"m": "er", "f": "sie", "n": "es", "p": "sie"}
RELATIVE_DATIVE_PLURAL = "denen"  # else the relative pronouns are the articles
