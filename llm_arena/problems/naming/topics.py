"""Things to be named, for `naming-v0`, each with words that a person links to it.

Two disjoint lists: `TRAIN` to learn from, `HELDOUT` to be judged on. Written by hand for this library. A line is
`topic: associations`; the associations are lower-case stems, which the rubric judge also finds inside coined words
(`Brewtopia` holds `brew`). A topic of your own needs no entry: see `associations`.
"""

from __future__ import annotations

import re
from functools import lru_cache

_TRAIN = """
coffee shop: bean brew roast mug espresso java crema steam grind drip latte ember caffeine
bakery: crumb crust flour loaf knead dough oven rise butter sugar bread yeast golden
bookstore: page chapter ink novel spine shelf story verse tale folio quill read
flower shop: petal bloom stem rose lily bouquet thorn garden fern blossom violet wild
pizzeria: slice crust oven basil dough tomato fire mozza stone napoli cheese
ice cream parlor: scoop cone swirl frost sundae vanilla cream sprinkle chill melt sweet
barber shop: blade clip razor fade comb shear trim beard cut shave strand
hair salon: curl lock tress strand shear comb mane wave shine snip style
yoga studio: lotus breath flow zen stretch balance asana pose calm mat still bend
gym: iron forge pulse lift sweat power flex strong rep grit muscle beast
dance studio: step rhythm twirl beat tempo spin sway barre groove leap move
music school: note chord scale melody tempo key song octave treble tune harmony string
record shop: vinyl groove needle spin track wax tune disc side retro echo
guitar brand: string fret chord strum riff pick neck resonance amp twang tone
rock band: riff thunder amp stone echo static wolf fire noise rebel shadow
jazz club: blue note sax swing brass smoke midnight velvet tempo groove cool
toy store: play giggle puzzle teddy bounce tumble wonder whimsy block doll marble
pet shop: paw tail whisker fur wag feather purr bark nest critter fin
dog groomer: paw wag fur bark tail clip suds fluff brush hound pup
veterinary clinic: paw tail care fur heal whisker hoof vet pulse gentle
cat cafe: purr whisker meow paw feline tail nap latte kitten claw mug
bicycle shop: wheel spoke pedal chain gear ride cycle velo road crank trail
running shoe: stride swift sole pace track run dash mile fleet bolt sprint
skateboard brand: deck wheel ollie grind ramp board curb kick roll street
surf school: wave tide swell board foam reef salt crest wind barrel
hiking club: trail summit boot peak ridge path wander stone pine trek
climbing wall: grip ledge summit boulder rope crag chalk peak ascent cliff stone
swimming pool: splash wave lap dive blue ripple aqua lagoon float tide
tennis club: ace serve racket court volley rally love set baseline net
golf course: green fairway birdie tee eagle putt links swing hole ridge
chess club: knight rook gambit pawn king queen check bishop board castle mate
board game cafe: dice pawn token roll meeple board turn quest card mug
video game: quest pixel realm shadow level hero rift legend star byte blade
fantasy novel: dragon realm shadow crown sword throne rune ember blade moon quest
science fiction film: star nova orbit void galaxy quantum cosmos signal eclipse moon
detective agency: clue shadow lens trace sleuth cipher watch eye mystery hound sherlock
escape room: lock key riddle clue cipher puzzle maze vault secret trap exit
magic show: wand illusion mystic spell card trick wonder conjure smoke mirage
circus: tent ring acrobat trapeze clown ring juggle marvel lion spectacle
theater group: stage curtain act mask spotlight drama scene prop player muse
movie theater: reel screen frame silver popcorn cinema scene flick light marquee
art gallery: canvas brush hue frame palette muse easel paint stroke color
pottery studio: clay kiln wheel glaze fire earth mud bowl spin stone
tattoo parlor: ink needle skin rose anchor mark line black raven
jewelry brand: gem ruby gold pearl sparkle silver facet opal jewel luster charm
watch brand: tick hour dial chrono second tempo hand pulse gear time
perfume: scent rose musk amber bloom mist essence velvet jasmine petal noir
lipstick: ruby velvet rouge pout crimson rose blush cherry satin kiss scarlet
soap company: suds lather foam bubble lavender clean fresh mint scrub pure
candle shop: wick wax flame glow ember scent flicker light amber lumen
tea house: leaf steep kettle jasmine chai oolong cup blossom steam mint pot
juice bar: squeeze pulp citrus mango berry zest fresh press orange nectar sip
craft brewery: hop barrel ale malt foam brew barley lager stout keg yeast tap
winery: vine grape cork cellar barrel vino oak harvest ruby merlot bloom
cocktail bar: shaker twist mint bitter rum lime gin ice velvet spirit olive
burger restaurant: bun patty grill stack sizzle beef flame char melt bite
taco truck: salsa lime tortilla spice cilantro fuego chili wheel corn agave
sushi restaurant: wasabi roll sake tuna koi ginger umi rice bento wave sea
noodle bar: ramen bowl broth slurp udon wok steam soy noodle chop
steakhouse: sizzle grill flame char iron prime beef cut ember smoke bull
seafood restaurant: tide hook shell pearl anchor salt oyster crab harbor catch wave
vegan restaurant: leaf root green sprout bean garden plant kale seed harvest
breakfast diner: sunrise toast egg pancake skillet syrup morning yolk griddle bacon
chocolate brand: cocoa cacao truffle velvet dark melt silk bean sweet praline
candy store: sugar gum drop lolli sweet jelly caramel swirl taffy candy mint
honey company: bee hive nectar comb amber bloom gold buzz clover wild
hot sauce: fire blaze chili scorch flame pepper inferno burn fuego ember smoke
granola bar: oat crunch nut seed trail honey grain bite harvest berry
energy drink: volt bolt surge charge spark jolt pulse rush zap fuel
farmers market: harvest root crop seed field basket barn orchard fresh soil
garden center: sprout root bloom seed soil fern leaf petal green moss trowel
landscaping company: lawn green stone hedge root oak meadow leaf turf bloom
cleaning service: spark shine sweep dust gleam mop fresh polish bright scrub
laundromat: suds spin fold wash bubble tumble press cycle fresh linen
moving company: box haul wheel lift load road truck swift carry van
taxi service: wheel meter ride road swift cab curb lane dash fare
airline: wing sky cloud jet soar altitude wind horizon aero flight
hotel: pillow suite key lobby stay rest inn night linen velvet
hostel: bunk pack nomad wander roam stay bed trail key
campground: pine tent fire star camp ember trail lake wild moon
cruise ship: wave sea anchor tide horizon voyage ocean deck pearl sail
travel agency: voyage compass globe roam passport horizon wander map sky trail
space telescope: star lens nova orbit galaxy deep cosmos light eye photon
robot vacuum: dust sweep whirl spin suction clean robo floor dash
smart speaker: echo voice sound tone whisper sonic wave talk hum
mobile phone: signal ring call pocket nova wave touch link dial
search engine: seek find query quest lens scout trail spark answer dig
weather app: cloud rain storm sky sun wind thunder mist forecast drizzle
dating app: heart spark match love flame kiss cupid crush swipe rose
budgeting app: coin penny ledger save mint nest cent purse sum
language learning app: tongue lingo word speak verb phrase babel fluent talk
meditation app: calm breath still zen mind quiet serene lotus drift hush
recipe website: spoon whisk simmer spice pan fork dish kitchen pinch taste
news podcast: wire headline voice mic signal brief wave report daily scoop
history podcast: past era relic scroll time chronicle echo tale empire saga
kids' tv show: giggle jump puppet rainbow wiggle tumble star silly buddy
cyber security firm: shield lock cipher vault guard byte fort wall key sentinel
law firm: scale justice gavel oath brief counsel pillar bench shield
architecture firm: arch beam stone line pillar span blueprint vault form
construction company: beam brick iron steel hammer forge build crane stone
furniture brand: oak timber grain walnut chair nest plank joint cedar
mattress: dream cloud pillow sleep feather doze slumber drift snooze nap
umbrella brand: rain drop storm drizzle canopy puddle dry cloud shelter
winter jacket: frost snow down fleece arctic polar north glacier alpine parka
sunglasses: shade lens ray sun glare tint horizon visor dusk
backpack brand: pack trail strap nomad roam trek haul summit pouch
tea towel: linen fold thread dry cotton weave cloth stitch
knitting club: yarn needle loop stitch wool purl knot thread row
photography studio: lens shutter flash focus frame light snap aperture pixel
wedding planner: vow ring veil lace bliss aisle bouquet bell forever
daycare: giggle nap crib tiny sprout toddle nest blocks wonder
"""

_HELDOUT = """
smoothie stand: blend berry mango sip whirl pulp zest fresh fruit straw
donut shop: glaze ring sprinkle dough sugar hole fry sweet cream
sandwich shop: crust slice stack deli rye bite bread melt mustard
cheese shop: rind wheel brie gouda curd cheddar milk cave melt
butcher shop: cleaver cut bone block prime chop beef ham
fish market: hook scale tide net fin catch gill salt sea
spice shop: saffron pepper clove cumin ginger cinnamon chili pinch zest
pancake house: syrup stack flip batter griddle maple butter fluffy
barbecue joint: smoke rib ember char pit flame hickory sauce grill
frozen yogurt shop: swirl chill frost berry culture cup creamy froyo
popcorn brand: kernel pop butter crunch corn puff salt burst
chewing gum: mint chew bubble fresh snap pop breeze spear
mineral water: spring stone clear brook drop glacier pure crystal aqua
olive oil: grove branch press green gold orchard drip virgin
cat food: purr whisker paw meow feline tuna tail bowl claw
dog park: wag fetch paw bark tail ball leash hound romp
horse stable: hoof mane gallop saddle rein hay bridle stall canter
aquarium: fin reef coral tide blue shark pearl wave ocean
zoo: roar wild paw lion safari stripe tusk mane feather
bird sanctuary: wing feather nest song flight plume robin heron
plant nursery: sprout root leaf seed soil bloom fern green moss
tree house: branch bough leaf nest oak ladder canopy twig
treehouse hotel: branch canopy nest bough leaf suite oak pillow
ski resort: snow slope powder summit alpine frost peak glide lift
beach bar: sand tide salt rum palm wave sunset shell lime
fishing boat: hook tide net wave anchor sail reel gull sea
sailing club: sail wind mast knot tide anchor breeze helm
scuba diving school: reef deep bubble fin coral tide dive blue
kayak rental: paddle river ripple current drift stream rapid
mountain lodge: peak pine cedar summit hearth timber snow ridge
bowling alley: pin strike lane roll spare gutter ball split
roller rink: wheel skate spin roll glide disco groove
arcade: pixel token joystick coin neon level score retro button
karate school: fist belt dragon kick tiger chop dojo strike
boxing gym: glove jab ring punch hook bell round bout iron
archery range: arrow bow quill target string aim fletch bull
football team: titan storm goal wolf thunder lion charge eagle
marching band: drum brass beat parade step horn cadence
choir: voice song hymn harmony chord alto echo breath
piano brand: key ivory chord note octave hammer grand tone
drum kit: beat snare thump tempo stick thunder roll
comic book: ink cape panel hero page bolt mask boom
poetry magazine: verse ink rhyme stanza quill muse page line
crime podcast: clue shadow cold alibi motive trace night noir
cooking show: whisk pan sizzle spoon chef flame simmer taste
quiz night: trivia buzzer riddle brain clue point wit
haunted house: ghost shadow creak phantom crypt specter moan gloom
pirate ship: skull anchor plank raven tide crow black bone sail
spaceship: star nova orbit rocket void comet astro galaxy
electric car: volt spark charge amp watt bolt current wheel
motorcycle: chrome iron roar throttle wheel road thunder gear
scooter rental: zip wheel glide kick curb roll scoot
parking app: spot curb meter lane space slot wheel
fitness tracker: pulse step stride beat pace band heart
alarm clock: chime wake dawn bell tick sunrise ring rooster
notebook brand: page ink quill paper line margin spine leaf
fountain pen: ink nib quill script stroke flow line feather
raincoat: drop drizzle storm puddle cloud dry slick
hat shop: brim felt crown feather cap tip fedora
shoe repair shop: sole heel lace stitch cobble thread boot
tailor: thread needle stitch hem seam cloth button cut
antique store: relic patina brass rust time dust curio heirloom
hardware store: bolt hammer nail wrench iron rivet tool
locksmith: key bolt tumbler latch brass lock pin
"""


def _read(text: str) -> dict[str, tuple[str, ...]]:
    lines = (line.partition(": ") for line in text.strip().splitlines())
    return {topic: tuple(dict.fromkeys(words.split())) for topic, _, words in lines}


TRAIN: dict[str, tuple[str, ...]] = _read(_TRAIN)
"""Topic -> associations, for training."""

HELDOUT: dict[str, tuple[str, ...]] = _read(_HELDOUT)
"""Topic -> associations, for evaluation; no topic of `TRAIN` is among them."""

SPLITS: dict[str, tuple[str, ...]] = {"train": tuple(TRAIN), "heldout": tuple(HELDOUT)}
"""Split -> its topics."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MODIFIERS = _words(
    """Amber Ashen Autumn Bold Brass Bright Copper Coral Crimson Curious Distant Electric Fabled Gentle Gilded Golden
    Hidden Humble Indigo Ivory Jolly Lunar Mellow Midnight Nimble Northern Polished Proud Quiet Restless Roaming Rustic
    Scarlet Secret Silent Silver Sunlit Swift Velvet Wandering Whispering Wild"""
)
"""First words for scripted names."""

NOUNS = _words(
    """Acorn Badger Beacon Canyon Comet Cricket Falcon Fiddle Harbor Heron Juniper Lantern Magpie Marble Meadow Otter
    Parade Pebble Raven River Saddle Sparrow Thistle Thicket Tower Turnip Walrus Willow Window Zephyr"""
)
"""Second words for scripted names that have nothing to do with their topic."""


@lru_cache(maxsize=1024)
def associations(topic: str) -> tuple[str, ...]:
    """Returns the stems linked to `topic`: its own entry, and that of any known topic which it contains.

    A topic unknown to the lists gets an empty tuple; relevance then rests on the topic's own words alone.

    >>> "brew" in associations("Coffee Shop")
    True
    """
    plain = " ".join(re.findall(r"[a-z']+", topic.lower()))
    found = [words for known, words in (TRAIN | HELDOUT).items() if plain == known or f" {known} " in f" {plain} "]
    return tuple(dict.fromkeys(stem for words in found for stem in words))


__all__ = ["HELDOUT", "MODIFIERS", "NOUNS", "SPLITS", "TRAIN", "associations"]
