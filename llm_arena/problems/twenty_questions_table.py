"""500 secrets for `twenty-questions-v0` and what is true of them. Written by hand for this library.

`_PROPERTIES`: a line is `key | question | other phrasings; ...`. `_SECRETS` is a table of yes and no: a property that a
secret does not list, by itself or by its group, is "no". Groups keep it short:
a line `= a b c` opens a group whose secrets all have a, b and c; then `name: d e -b` adds d and e, and takes b back.
Questions ask for what is usually so: a secret's colour is that of the typical one, "bigger than a person" means a grown
person. Animals are no food here, and a vegetable is what a cook calls one.

Every fifth secret of a group is held out (`heldout`), the others are to learn from (`train`).
"""

from __future__ import annotations

import re
from functools import lru_cache

_PROPERTIES = """
animal | Is it an animal? | creature
mammal | Is it a mammal?
bird | Is it a bird?
fish | Is it a fish?
insect | Is it an insect? | bug
reptile | Is it a reptile or an amphibian? | reptile; amphibian
plant | Is it a plant?
tree | Is it a tree?
flower | Is it a flower?
food | Is it a food? | is it edible; is it eaten; can you eat it; do people eat it
fruit | Is it a fruit?
vegetable | Is it a vegetable? | veggie
drink | Is it a drink? | beverage; can you drink it; do people drink it
made | Is it made by people? | is it man-made; is it manmade; is it artificial; is it made by humans; is it human-made
tool | Is it a tool?
vehicle | Is it a vehicle? | means of transport; is it used for transportation
instrument | Is it a musical instrument? | instrument
worn | Is it worn on the body? | piece of clothing; clothing; clothes; can you wear it; do people wear it; is it worn
furniture | Is it a piece of furniture? | furniture
building | Is it a building?
nature | Is it a part of nature that is not alive?
person | Is it a person with a certain job? | person; human; job; profession; occupation
sport | Is it a sport or a game? | sport; game
body | Is it a part of the human body? | body part; part of the body
toy | Is it a toy?
big | Is it bigger than a person? | is it bigger than a human; is it larger than a person
hand | Does it fit in one hand? | does it fit in your hand; can it fit in one hand; can you hold it in one hand
fur | Is it covered with fur or hair? | does it have fur; does it have hair; is it furry
four | Does it walk on four legs? | does it have four legs; is it four-legged
flies | Can it fly? | does it fly; is it able to fly
water | Does it spend much of its life in water? | does it live in water; does it live in the water; is it aquatic
pet | Is it a common pet? | pet; is it kept as a pet; is it often kept as a pet
farm | Is it a farm animal? | does it live on a farm
hunts | Is it known as a hunter of other animals?
marked | Is it known for stripes or spots? | does it have stripes; does it have spots; is it striped; is it spotted
horns | Does it have horns or antlers? | does it have horns; does it have antlers
works | Is it an animal used for riding or carrying? | riding animal
savanna | Is it typical of the African savanna? | does it live in the savanna
night | Is it known for being active at night? | is it nocturnal; is it active at night
polar | Is it typical of the Arctic or the Antarctic? | does it live in the arctic; does it live in the antarctic
jumps | Is it known for jumping?
venom | Does it sting or bite with venom? | is it venomous; does it sting
shell | Does it have a shell?
tail | Does it have a long tail?
extinct | Is it extinct?
red | Is it usually red?
orange | Is it usually orange in color? | is it orange
yellow | Is it usually yellow?
green | Is it usually green?
brown | Is it usually brown?
black | Is it usually black, at least in part?
white | Is it usually white, at least in part?
gray | Is it usually gray? | is it grey
pink | Is it usually pink?
blue | Is it usually blue or purple? | is it blue; is it purple
sweet | Does it taste sweet? | is it sweet
sour | Does it taste sour? | is it sour
spicy | Does it taste hot or sharp? | is it spicy; does it taste hot
baked | Is it baked in an oven?
meat | Is there usually meat in it? | does it contain meat; is it made of meat
dairy | Is it milk or made from milk? | dairy product; is it made from milk; is it made of milk; is it dairy
grain | Is it made from grain or flour? | is it made of flour; is it made from flour; is it made from grain
frozen | Is it eaten frozen? | is it frozen
tropical | Is it a tropical fruit or plant? | tropical fruit; is it tropical
stone | Does it have one large stone or seed inside? | does it have a stone; does it have a pit
root | Does it grow under the ground? | does it grow underground
round | Is it round like a ball? | is it spherical; is it ball-shaped; is it shaped like a ball
thin | Is it long and thin?
citrus | Is it a citrus fruit?
leaves | Are its leaves eaten? | is it leafy
nut | Is it a nut or a seed? | nut; seed
spread | Is it spread on bread or poured on food? | spread; sauce
alcohol | Does it contain alcohol? | is it alcoholic; alcoholic drink
warm | Is it usually served hot? | is it served hot; is it served warm; is it eaten hot; is it drunk hot
fizzy | Is it fizzy? | is it carbonated
liquid | Is it a liquid?
wood | Is it usually made of wood? | is it wooden; is it wood; is it made of wood
metal | Is it usually made of metal? | is it metal; is it made of metal
cloth | Is it usually made of cloth, wool or leather? | is it made of cloth; is it made of fabric; is it made of wool
glass | Is it made of glass, at least in part? | is it made of glass
paper | Is it made of paper? | is it made from paper
electric | Is it an electric device? | electronic device; is it electric; is it electronic; does it use electricity
wheels | Does it have wheels?
engine | Does it have an engine?
sharp | Is it sharp?
kitchen | Is it a kitchen utensil or appliance? | kitchen utensil; kitchen appliance; is it used in the kitchen
dining | Is it put on the table for a meal? | tableware; is it tableware
bath | Is it usually found in the bathroom? | is it found in the bathroom; is it used in the bathroom
bedroom | Is it usually found in the bedroom? | is it found in the bedroom; is it used in the bedroom
outside | Is it mostly used outdoors? | is it used outdoors; is it used outside
wall | Does it usually hang on a wall or a window? | does it hang on a wall; does it hang on the wall
writes | Is it used for writing or drawing? | is it used for writing; is it used to write; is it used for drawing
read | Is it something to read? | can you read it; do people read it
cleans | Is it used for cleaning? | is it used to clean
cuts | Is it used for cutting? | is it used to cut; can you cut with it; do you cut with it
measures | Does it measure something? | is it used to measure; is it used for measuring; measuring instrument
light | Is it known for giving light? | does it give light; does it produce light; light source
holds | Is it made to hold other things? | container; does it hold things; does it hold other things
money | Is it money? | money; is it used to pay
sound | Does it play music or speech? | does it play music; does it make music
screen | Does it have a screen?
heats | Is it used to heat things? | is it used for heating; does it heat things
sleep | Do people sleep on it or in it? | do you sleep on it; do you sleep in it; do people sleep on it
sit | Do people sit on it? | do you sit on it; can you sit on it; is it used for sitting
pair | Are there two of it that belong together? | does it come in pairs; does it come in a pair
head | Is it worn on the head or the neck? | is it worn on the head; is it worn on your head; is it worn on the neck
feet | Is it worn on the legs or the feet? | is it worn on the feet; is it worn on your feet; is it worn on the legs
sole | Does it have a sole? | footwear
jewel | Is it jewelry? | piece of jewelry; jewellery
cold | Is it worn in cold weather? | is it worn in winter
rain | Is it a protection against rain?
women | Is it worn mostly by women? | is it worn by women
rails | Does it run on rails? | does it run on tracks
floats | Does it travel on or under water? | does it travel on water; boat; watercraft
public | Does it carry many passengers? | does it carry many people
town | Is it a part of a town's public transport? | is it part of the public transport of a city
muscle | Is it a vehicle that is moved by muscle power? | is it human-powered; does it have pedals
rescue | Is it for emergencies? | emergency vehicle
strings | Does it have strings?
blown | Is it played by blowing? | wind instrument; is it blown; do you blow into it
keys | Does it have a keyboard?
struck | Is it played by hitting or shaking it? | percussion instrument; percussion
orchestra | Is it common in a symphony orchestra?
home | Is it a home that people live in? | house or home; home
worship | Is it a place of worship? | religious building
learn | Do people go there to learn? | do people study there
tall | Is it known for being tall?
shop | Is it a shop? | shop; store
old | Is it known from the Middle Ages or before? | is it ancient; is it medieval
sky | Is it a part of nature that is seen in the sky?
space | Is it a body in outer space? | celestial body
falls | Does it fall from the sky? | precipitation
wet | Is it water or ice in nature? | is it made of water; is it made of ice
land | Is it a piece of land? | landform
disaster | Is it a natural disaster? | disaster
burns | Is it a part of nature that can burn you?
mineral | Is it a metal, a mineral or a stone? | mineral; rock
ball | Is it played with a ball? | does it use a ball; do you use a ball; is a ball used
team | Is it played in teams? | team sport; is it played in a team; is it played by teams
bat | Is it played with a racket, a bat or a stick? | do you use a racket; does it use a racket; do you use a bat
net | Do the players face each other over a net?
snow | Is it done on snow or ice? | winter sport
pool | Is it done in or on the water? | water sport
board | Is it played sitting at a table? | board game; card game; table game
cards | Is it played with cards?
fight | Do two opponents fight each other? | martial art; combat sport
weapon | Is a weapon used in it?
style | Do judges score its style? | is it scored by judges
health | Does this person look after people's health? | does this person work in a hospital
cooks | Does this person prepare or serve food? | does this person work with food; does this person prepare food
law | Does this person work for law or safety? | does this person work with the law
stage | Does this person perform for an audience? | performer; entertainer; does this person perform
artist | Does this person make works of art? | artist; does this person make art
steers | Does this person steer a vehicle? | does this person drive; does this person drive a vehicle
aloft | Does this person work in the air or in space?
builds | Does this person build or repair things? | does this person build things; does this person repair things
fields | Does this person work mostly outdoors? | does this person work outdoors; does this person work outside
uniform | Does this person usually wear a uniform? | does this person wear a uniform
desk | Does this person work mostly at a desk? | does this person work at a desk; does this person work in an office
inside | Is it inside the body? | internal organ; is it an organ inside the body
face | Is it a part of the head? | part of the face; part of the head
limb | Is it an arm or a leg, or a part of one?
lower | Is it below the waist?
joint | Is it a joint that bends? | joint
sense | Does a person see, hear, smell or taste with it? | sense organ
hard | Is it hard like bone?
"""

_SECRETS = """
= animal mammal fur four
dog: pet tail; cat: pet hunts tail; hamster: pet hand night; guinea pig: pet; rabbit: pet jumps
horse: big farm brown tail works; donkey: farm gray tail works; cow: big farm horns tail; sheep: farm white
goat: farm horns; mouse: hand gray night tail; rat: gray night tail; squirrel: brown tail
hedgehog: hand night -fur brown; lion: big hunts savanna tail yellow; tiger: big hunts marked orange tail
leopard: hunts savanna marked tail; cheetah: hunts savanna marked tail yellow; wolf: hunts gray tail
fox: hunts red tail; brown bear: big brown; polar bear: big white hunts polar; panda: black white big; koala: gray
deer: horns brown; reindeer: horns polar; buffalo: big horns black savanna; camel: big brown works
zebra: big savanna marked black white tail; giraffe: big savanna marked yellow tall tail
raccoon: night marked gray tail; skunk: black white marked tail; beaver: brown water tail; hyena: savanna hunts marked
= animal mammal
elephant: four big savanna gray works; hippopotamus: four big gray water; rhinoceros: four big savanna gray horns
pig: four farm pink; whale: water big gray; dolphin: water gray big jumps; seal: water fur gray
walrus: water big brown polar fur; orca: water big hunts black white; kangaroo: fur jumps brown tail
bat: fur flies night hand; gorilla: fur four black big; monkey: fur tail brown
mammoth: four fur big extinct brown tail
= animal bird flies
eagle: hunts brown; owl: hunts night; parrot: pet green; pigeon: gray; crow: black; swan: white water
duck: farm water; goose: farm white water; seagull: white gray; flamingo: pink water; stork: white black
hummingbird: hand green; sparrow: hand brown; robin: hand red; woodpecker: black white red; peacock: blue tail marked
penguin: -flies black white water polar; ostrich: -flies big savanna black; rooster: farm red -flies tail
turkey: farm brown -flies; dodo: -flies extinct gray; falcon: hunts gray
= animal fish water
shark: big hunts gray; goldfish: pet hand orange; eel: thin
= animal water
octopus:; squid: white; jellyfish: venom; starfish: hand orange; crab: shell red; lobster: shell red tail
oyster: shell hand gray
= animal reptile
python: hunts thin marked; cobra: hunts venom thin; crocodile: hunts big four water green tail; lizard: four hand tail
chameleon: four hand green tail; sea turtle: shell green water; tortoise: four shell brown pet
frog: four hand green jumps water; dinosaur: big extinct tail
= animal insect hand
bee: flies venom marked yellow; wasp: flies venom marked yellow hunts; ant:; butterfly: flies marked
moth: flies night brown; housefly: flies black; mosquito: flies; cockroach: brown night; ladybug: flies red marked
dragonfly: flies thin; grasshopper: jumps green; flea: jumps black; firefly: flies night light; caterpillar: green thin
= animal hand
spider: hunts venom; scorpion: venom tail; snail: shell; earthworm: thin pink
= food fruit sweet hand
apple: red round; pear: green; banana: yellow tropical; peach: orange stone round; apricot: orange stone
plum: blue stone round; cherry: red stone round; strawberry: red; raspberry: red sour; blueberry: blue round; grape:
date: brown stone; kiwi: green brown; mango: orange tropical stone; orange: orange citrus round
lemon: yellow citrus sour -sweet; lime: green citrus sour -sweet; grapefruit: citrus sour round -sweet
pineapple: tropical yellow -hand; coconut: tropical brown round shell -hand; watermelon: green round -hand
melon: yellow round -hand; papaya: tropical orange -hand; pomegranate: red round sour
avocado: green -sweet stone tropical; olive: green -sweet stone; blackberry: black; cranberry: red sour round -sweet
= food vegetable
carrot: orange thin root hand; potato: root brown hand warm; onion: root round hand spicy
garlic: root white hand spicy; beet: root red round hand; radish: root red hand spicy round
ginger: root brown spicy hand; sweet potato: root orange sweet warm; tomato: red round hand; cucumber: green
pumpkin: orange round; eggplant: blue; chili pepper: red spicy thin hand; cabbage: green round leaves
lettuce: green leaves; spinach: green leaves warm; broccoli: green warm; cauliflower: white warm; celery: green thin
asparagus: green thin warm; corn: yellow sweet nut; pea: green round hand nut; green bean: green thin hand warm
mushroom: brown hand -vegetable
= food nut hand
walnut: shell brown round; peanut: shell root; almond: brown
= food made
bread: grain baked brown; toast: grain brown warm hand; bagel: grain baked hand; croissant: grain baked hand brown
pretzel: grain baked hand brown thin; cake: grain baked sweet; cookie: grain baked sweet hand
apple pie: baked sweet grain warm; donut: grain sweet hand; pancake: grain sweet warm; pizza: grain baked warm
spaghetti: grain warm thin; lasagna: grain baked warm meat; rice: grain white warm; soup: warm liquid
porridge: grain warm sweet white; popcorn: grain white hand; hamburger: grain meat warm; hot dog: grain meat warm thin
sausage: meat warm thin; bacon: meat warm red; ham: meat pink; steak: meat warm brown; meatball: meat warm round hand
taco: grain meat hand warm spicy; sandwich: grain hand; cheese: dairy yellow; butter: dairy yellow spread
yogurt: dairy white sour; ice cream: dairy frozen sweet; whipped cream: dairy white sweet; chocolate: sweet brown hand
lollipop: sweet hand; marshmallow: sweet white hand; honey: sweet yellow spread liquid -made; sugar: sweet white
salt: white; ketchup: red spread; mustard: yellow spicy spread; jam: sweet red spread; peanut butter: brown spread
omelet: yellow warm; egg: shell hand -made; french fries: yellow warm thin hand; curry: spicy warm
popsicle: frozen sweet hand; salad: green leaves
= drink liquid
water:; milk: white dairy; coffee: black warm made; tea: brown warm made; hot chocolate: brown warm sweet dairy made
orange juice: orange sweet made; lemonade: sour sweet yellow made; cola: brown sweet fizzy made
beer: alcohol fizzy yellow made grain; red wine: alcohol red made; champagne: alcohol fizzy yellow made
whiskey: alcohol brown made grain
= plant
oak: tree big wood; pine tree: tree big tall green wood; palm tree: tree big tall tropical wood; rose: flower red
tulip: flower; sunflower: flower yellow tall; daisy: flower white hand; cactus: green sharp; fern: green
grass: green thin; moss: green hand; bamboo: green tall big thin
= made vehicle big engine metal outside
car: wheels; truck: wheels holds; bus: wheels public town; taxi: wheels yellow town; ambulance: wheels white rescue
fire engine: wheels red rescue; motorcycle: wheels sit -big; train: wheels rails public
tram: wheels rails public town; helicopter: flies; airplane: flies public wheels; rocket: flies space tall
submarine: floats; motorboat: floats -metal; cruise ship: floats public
= made vehicle outside
bicycle: wheels muscle metal sit; skateboard: wheels muscle wood; sailboat: floats big; canoe: floats muscle thin
rowboat: floats muscle big wood; hot-air balloon: flies big; sled: wood sit; horse carriage: wheels wood big
wheelchair: wheels sit metal muscle -outside
= made instrument sound
guitar: wood strings; violin: wood strings orchestra; harp: wood strings orchestra tall; piano: wood strings keys big
flute: metal blown orchestra thin; trumpet: metal blown orchestra; saxophone: metal blown
clarinet: wood blown orchestra black thin; harmonica: metal blown hand; drum: struck orchestra; xylophone: struck wood
accordion: keys; triangle: struck metal hand orchestra; church organ: keys big
= made worn cloth
shirt:; sweater: cold; coat: cold outside; raincoat: rain outside; dress: women; skirt: women feet; jeans: feet blue
shorts: feet; socks: feet pair; tights: feet women thin; hat: head; scarf: head cold thin outside; necktie: head thin
bow tie: head hand; gloves: cold pair outside; shoes: feet pair sole; boots: feet pair outside sole
slippers: feet pair bedroom sole; belt: thin; pajamas: bedroom; bathrobe: bath; swimsuit: outside
= made worn
ring: jewel metal hand; necklace: jewel head; earrings: jewel head pair hand women; crown: jewel head metal old
wristwatch: measures hand; glasses: glass head hand; sunglasses: glass head hand outside black; helmet: head outside
= made furniture
chair: wood sit; armchair: cloth sit; sofa: cloth sit big; park bench: wood sit outside; bed: sleep big bedroom wood
hammock: sleep cloth outside; dining table: wood big; desk: wood; bookshelf: wood holds
wardrobe: wood holds big bedroom; nightstand: wood bedroom holds
= made
mirror: glass bath wall; lamp: light electric; candle: light thin; flashlight: light electric hand
curtain: cloth wall; carpet: cloth; pillow: cloth bedroom; blanket: cloth bedroom big; mattress: sleep big bedroom
clock: measures wall; alarm clock: measures bedroom; vase: holds glass; broom: cleans thin
vacuum cleaner: cleans electric; soap: cleans hand bath; towel: cloth bath; toothbrush: cleans hand bath thin
comb: hand bath; shampoo: cleans bath liquid; bathtub: bath holds big; toilet: bath sit white
toilet paper: bath paper white cleans; washing machine: cleans electric holds; iron: heats electric; door: wood big
window: glass; roof: big outside; chimney: outside tall big; ladder: tall; rope: thin
= made kitchen
refrigerator: electric holds big; oven: electric heats holds; microwave: electric heats; kettle: heats holds
frying pan: heats metal; fork: metal hand sharp dining thin; spoon: metal hand dining thin
kitchen knife: metal sharp cuts thin; plate: dining white; bowl: dining holds; cup: holds hand dining
wine glass: glass holds hand dining; cutting board: wood; rolling pin: wood thin
chopsticks: wood pair thin dining hand; kitchen scale: measures; blender: electric holds
napkin: dining -kitchen hand paper cleans
= made tool
hammer: hand metal; screwdriver: metal hand thin; saw: metal cuts sharp; axe: cuts sharp outside metal
electric drill: electric hand; shovel: outside; rake: outside thin; lawn mower: outside cuts engine wheels
scissors: metal hand cuts sharp; needle: metal hand sharp thin; tape measure: measures hand
thermometer: measures hand glass thin; magnifying glass: glass hand; wheelbarrow: outside wheels holds
= made
pen: writes hand thin; pencil: writes hand thin wood; chalk: writes hand thin white; notebook: writes paper
book: paper read; newspaper: paper black white read; envelope: paper holds hand; postage stamp: paper hand; map: paper
ruler: measures hand thin; computer: electric screen keys; smartphone: electric screen hand sound
television: electric screen sound; radio: electric sound; camera: electric screen hand glass; printer: electric
headphones: electric sound head worn; microphone: electric hand; light bulb: electric light glass hand
remote control: electric hand thin; drone: electric flies; backpack: holds cloth; suitcase: holds wheels
wallet: holds hand cloth; umbrella: rain outside; coin: metal hand money; key: metal hand; flag: cloth outside
teddy bear: toy cloth; doll: toy; kite: toy flies outside strings; yo-yo: toy hand strings; ball: toy round
= made building big
house: home; castle: home old; igloo: home white polar; skyscraper: tall glass; church: worship tall
pyramid: old tall; school: learn; hospital: rescue; pharmacy: shop; prison:; lighthouse: light tall; windmill: old
barn: wood
= nature
sun: sky space big round yellow light burns; moon: sky space big round white; star: sky space big round light burns
comet: sky space big; mountain: land big tall; volcano: land big tall burns; desert: land big yellow; island: land big
river: big wet liquid thin; lake: big wet liquid; ocean: big wet liquid blue; waterfall: big wet liquid tall
glacier: big wet white polar; rain: wet falls; snow: wet white falls; cloud: sky wet white big; rainbow: sky big
lightning: sky light burns; tornado: disaster big; earthquake: disaster; fire: light burns; sand: yellow mineral
gold: metal yellow mineral; diamond: mineral hand
= person
doctor: health; nurse: health uniform; chef: cooks uniform; waiter: cooks; farmer: fields; police officer: law uniform
judge: law; teacher:; painter: artist; singer: stage; pilot: steers uniform aloft; bus driver: steers
sailor: fields uniform; carpenter: builds; writer: desk artist; secretary: desk; astronaut: aloft uniform
= sport
soccer: ball team outside; basketball: ball team; volleyball: ball team net; baseball: ball team bat outside
ice hockey: team bat snow; tennis: ball bat net outside; badminton: bat net; table tennis: ball bat net
golf: ball bat outside; bowling: ball; swimming: pool; diving: pool style jumps; surfing: pool outside style
water polo: pool ball team; skiing: snow outside; figure skating: snow style; gymnastics: style; boxing: fight
fencing: fight weapon; chess: board; poker: board cards
= body
eye: face pair sense hand round; ear: face pair sense; nose: face sense; tooth: face hard white hand
tongue: face sense pink; hair: face thin; beard: face fur; arm: limb pair; elbow: limb pair joint
leg: limb pair lower; knee: limb pair lower joint; heart: inside red; brain: inside face; lung: inside pair
stomach: inside; bone: inside hard white; finger: limb thin hand; toe: limb lower hand
"""


_FILLERS = """
is it a an the this that thing something secret usually often mostly mainly typically generally normally commonly
do does did can could would be of on in to for at by one have has had kind type sort
"""
_EMPTY = frozenset(_FILLERS.split())
"""Words that change nothing in a question, but for the form that `_reading` keeps."""

_VERB = re.compile(r"(is|are|was|do|does|did|can|could|would|has|have)\b")
_NAMES = re.compile(rf"(is|was) (it|this|that|(the|this) (secret|thing)) (({'|'.join(sorted(_EMPTY))}) )*?(a|an|the)\b")


def _reading(question: str) -> tuple[str, frozenset[str]]:
    """Returns how a question asks ("a": is it a ...; "has": does it have ...; "": else) and the words that matter."""
    text = " ".join(re.findall(r"[a-z]+", question.casefold().replace("-", " ")))
    form = "has" if re.search(r"\b(have|has|had)\b", text) else "a" if _NAMES.match(text) else ""
    return form, frozenset(text.split()) - _EMPTY


@lru_cache(maxsize=1)
def questions() -> dict[str, str]:
    """Returns the question of each property, in the order of the table."""
    return {line.split(" | ")[0]: line.split(" | ")[1] for line in _PROPERTIES.strip().splitlines()}


@lru_cache(maxsize=1)
def _readings() -> dict[tuple[str, frozenset[str]], str]:
    """Returns the property that each understood reading asks for. What two properties could mean is left out."""
    exact = {_reading(question): key for key, question in questions().items()}
    also: dict[tuple[str, frozenset[str]], set[str]] = {}
    for line in _PROPERTIES.strip().splitlines():
        key, question, *rest = line.split(" | ")
        form = _reading(question)[0]
        for phrasing in [question, *(rest[0].split("; ") if rest else [])]:
            given, words = _reading(phrasing)
            # a phrasing without a verb stands for one with the verb of the question; "is it fruit" for "is it a fruit"
            forms = {given} if _VERB.match(phrasing.casefold()) else {form}
            for asked in forms | ({""} if "a" in forms else set()):
                also.setdefault((asked, words), set()).add(key)
    return {reading: next(iter(keys)) for reading, keys in also.items() if len(keys) == 1} | exact


@lru_cache(maxsize=1)
def table() -> dict[str, frozenset[str]]:
    """Returns the properties of each secret, by name."""
    rows: dict[str, frozenset[str]] = {}
    shared: list[str] = []
    for line in _SECRETS.strip().splitlines():
        if line.startswith("= "):
            shared = line[2:].split()
            continue
        for entry in line.split(";"):
            name, own = (part.strip() for part in entry.split(":"))
            taken_back = {word[1:] for word in own.split() if word.startswith("-")}
            rows[name] = frozenset([*shared, *own.split()]) & questions().keys() - taken_back
    return rows


@lru_cache(maxsize=1)
def secrets() -> dict[str, tuple[str, ...]]:
    """Returns the secrets of each split, `train` and `heldout`, and of `all`."""
    names = tuple(table())
    return {
        "train": tuple(name for at, name in enumerate(names) if at % 5 != 4),
        "heldout": names[4::5],
        "all": names,
    }


@lru_cache(maxsize=4096)
def property_of(question: str) -> str | None:
    """Returns the property of the table that a question asks for, or None.

    Only a question whose words are those of the table's question, or of a listed phrasing of it, is understood; what
    adds or denies something is not.

    >>> property_of("Is it an animal?"), property_of("can you eat it"), property_of("Is it not an animal?")
    ('animal', 'food', None)
    """
    return _readings().get(_reading(question))


def truth(secret: str, question: str) -> bool | None:
    """Returns what the table says; None where it does not know the secret or understand the question."""
    row, key = table().get(secret), property_of(question)
    return None if row is None or key is None else key in row
