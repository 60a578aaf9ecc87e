"""Pairs of near words for `undercover-v0`, hints that scripted players give, and which clue says a word.

Written by hand for this library. A line is `word / near word: hints that fit both | hints for the first | hints for the
second`. Each word stands in one pair only. Every fifth pair is held out (`heldout`), the others are to learn from
(`train`).
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

_PAIRS = """
coffee / tea: hot cup, morning drink | roasted beans, espresso | leaves, kettle
milk / yogurt: dairy, breakfast | cow, carton | cultures, spoon
butter / margarine: spread, toast | churned cream, dairy | vegetable oil, substitute
bread / cake: baked, oven | loaf, sandwich | birthday, candles
cookie / cracker: crunchy, snack | chocolate chips, sweet | salty, cheese
honey / syrup: sticky, sweet | bees, hive | pancakes, maple
salt / pepper: table, seasoning | ocean, white grains | sneeze, black
sugar / flour: kitchen, white powder | sweet, cavities | dough, wheat
rice / pasta: carbohydrates, boiled | sushi, grains | Italy, sauce
pizza / burger: fast food, cheese | slices, Naples | bun, patty
soup / stew: pot, ladle | broth, thin | chunks, thick
sandwich / taco: lunch, handheld | two slices, deli | Mexico, shell
ketchup / mustard: condiment, hot dog | tomatoes, red | seeds, yellow
apple / pear: orchard, fruit | cider, pie | green, bottom heavy
orange / lemon: citrus, juice | breakfast glass, segments | sour, yellow
banana / mango: tropical, fruit | peel, monkey | stone, orange flesh
grape / cherry: small, fruit | wine, bunch | stone, stem
strawberry / raspberry: red, jam | seeds outside, cream | cane, hollow
peach / apricot: stone, summer fruit | fuzz, Georgia | dried, small
watermelon / pumpkin: large, vine | summer picnic, red inside | autumn, carving
potato / carrot: root, vegetable | fries, mashed | rabbit, orange
onion / garlic: bulb, kitchen | tears, layers | vampire, cloves
cucumber / zucchini: green, long | pickles, salad | squash, grilled
lettuce / cabbage: leaves, green | salad, crisp | sauerkraut, round
tomato / bell pepper: red, salad | sauce, juicy | stuffed, crunchy
cheese / tofu: protein, cubes | mouse, holes | soy, vegan
egg / chicken: farm, breakfast or dinner | shell, yolk | feathers, wings
bacon / sausage: pork, breakfast | strips, crispy | links, casing
ham / turkey: holiday table, slices | pig, smoked | bird, Thanksgiving
shrimp / crab: seafood, shell | cocktail, small | claws, sideways
salmon / tuna: fish, ocean | upstream, pink | cans, large
chocolate / caramel: candy, sweet | cocoa, dark | burnt sugar, chewy
ice cream / sorbet: frozen, scoop | dairy, cone | fruit, no milk
donut / bagel: ring shape, dough | glaze, police | cream cheese, boiled
muffin / croissant: bakery, morning | blueberries, cup shaped | France, flaky
jam / jelly: toast, fruit | chunks, preserves | wobbly, clear
wine / beer: alcohol, bottle | grapes, cork | hops, foam
juice / soda: cold drink, glass | squeezed, vitamins | bubbles, cola
whiskey / vodka: strong drink, spirit | barrel, Scotland | clear, Russia
popcorn / potato chips: salty, snack | cinema, kernels | bag, thin
dog / wolf: canine, four legs | leash, bark | howl, pack
cat / tiger: whiskers, feline | litter box, purr | stripes, jungle
lion / leopard: big cat, Africa | mane, pride | spots, climbs trees
horse / donkey: hooves, ride | race, saddle | stubborn, long ears
cow / buffalo: horns, grass | dairy farm, moo | herd, prairie
sheep / goat: farm, hooves | wool, flock | beard, climbs
pig / hippopotamus: round, mud | oink, bacon | river, huge
rabbit / hare: long ears, hop | burrow, pet | fast, tortoise
mouse / rat: rodent, tail | tiny, cheese | sewer, plague
squirrel / hamster: small, furry | acorns, tree | wheel, cage
bear / panda: large, fur | hibernation, salmon | bamboo, China
fox / raccoon: bushy tail, woods | red, sly | mask, trash
elephant / rhinoceros: huge, gray | trunk, memory | horn, armor
giraffe / camel: tall, four legs | long neck, leaves | hump, desert
monkey / gorilla: primate, hands | banana, swings | chest beating, strong
kangaroo / koala: Australia, pouch | jumping, boxing | eucalyptus, sleepy
whale / dolphin: ocean, mammal | enormous, blowhole | clever, leaps
shark / crocodile: teeth, dangerous | fin, sea | reptile, river
seal / walrus: flippers, cold sea | circus ball, sleek | tusks, mustache
penguin / ostrich: flightless, bird | ice, tuxedo | fast runner, neck
eagle / owl: bird of prey, talons | national symbol, soars | night, hoot
parrot / peacock: colorful, bird | talks, pirate | tail feathers, proud
duck / goose: pond, bird | quack, bread crumbs | honk, down
swan / flamingo: long neck, bird | white, lake | pink, one leg
pigeon / crow: city, bird | statue, mail | black, clever
frog / toad: amphibian, jump | pond, green | warts, dry
snake / lizard: reptile, scales | no legs, hiss | tail, four legs
turtle / snail: slow, shell | reptile, flippers | slime, garden
bee / wasp: sting, wings | honey, hive | picnic pest, thin waist
butterfly / moth: wings, insect | colorful, flowers | lamp, night
ant / termite: tiny, colony | sugar, marching | wood, damage
spider / scorpion: eight legs, arachnid | web, silk | tail sting, desert
fly / mosquito: annoying, wings | buzz, garbage | blood, itch
octopus / squid: tentacles, ink | eight arms, garden | calamari, giant
lobster / crayfish: claws, shell | butter, expensive | river, small
rose / tulip: flower, spring | thorns, valentine | Netherlands, bulb
sunflower / daisy: petals, flower | tall, seeds | white, chain
oak / maple: tree, leaves | acorns, strong | Canada, red autumn
pine / palm: tree, trunk | needles, Christmas | coconut, beach
grass / moss: green, ground | lawn, mowing | damp, stones
cactus / fern: plant, pot | desert, spikes | shade, fronds
mushroom / seaweed: sushi, grows wild | cap, forest floor | ocean, kelp
river / lake: water, fishing | flows, bridge | still, shore
ocean / desert: vast, horizon | waves, ships | sand, dry
mountain / hill: high, climb | peak, snow | gentle, small
forest / jungle: trees, wild | autumn, deer | vines, tropical
beach / island: sand, holiday | towels, shore | surrounded, castaway
cave / tunnel: dark, underground | bats, natural | train, dug
volcano / geyser: eruption, hot | lava, ash | water, Yellowstone
valley / canyon: between heights, river | green, meadow | Arizona, steep
rain / snow: falls, weather | umbrella, puddles | flakes, skiing
thunder / lightning: storm, sky | loud, rumble | flash, bright
wind / tornado: moving air, weather | kite, breeze | funnel, destroys
fog / cloud: water drops, gray | ground level, headlights | sky, shapes
sun / moon: sky, round | day, heat | night, tides
star / planet: space, astronomy | twinkles, wish | orbit, Mars
comet / asteroid: space, rock | tail, ice | belt, dinosaurs
spring / autumn: season, mild | blossoms, April | falling leaves, harvest
summer / winter: season, months | heat, vacation | cold, gloves
morning / evening: part of the day, low sun | alarm, breakfast | sunset, dinner
fire / candle: flame, warm | camp, smoke | wick, wax
ice / glass: transparent, solid | frozen, melts | window, breaks
gold / silver: precious, metal | first place, yellow | second place, gray
diamond / pearl: jewelry, precious | hardest, engagement | oyster, round
iron / copper: metal, mined | rust, strong | wire, reddish
car / truck: road, engine | family, sedan | cargo, large
bus / train: public transport, passengers | stops, driver | rails, station
bicycle / motorcycle: two wheels, helmet | pedals, quiet | engine, leather
airplane / helicopter: flies, pilot | wings, airport | rotor, hover
boat / submarine: water, captain | sail, floats | underwater, periscope
ship / ferry: sea, deck | ocean crossing, anchor | short trips, cars aboard
rocket / missile: launch, fast | astronaut, space | war, target
taxi / ambulance: vehicle, city | meter, yellow | siren, hospital
tractor / bulldozer: heavy, machine | farm, plow | construction, pushes
skateboard / roller skates: wheels, sidewalk | tricks, deck | pair, boots
sled / ski: snow, downhill | sit, pulled by dogs | poles, slopes
elevator / escalator: between floors, mall | buttons, shaft | moving steps, handrail
balloon / kite: air, string | helium, party | wind, diamond shape
bridge / dam: river, concrete | crossing, span | reservoir, electricity
road / railway: travel, long | asphalt, lanes | tracks, steel
wheel / tire: round, car | spokes, invention | rubber, flat
anchor / rope: sailor, boat | heavy, seabed | knots, tied
house / apartment: home, rooms | garden, roof | floor number, landlord
castle / palace: royal, large | moat, knights | luxury, ballroom
church / temple: worship, building | bell tower, Sunday | Buddha, ancient Greece
school / university: learning, students | children, recess | degree, professor
hospital / pharmacy: health, medicine | surgery, beds | prescription, counter
library / bookstore: shelves, reading | borrow, quiet | buy, bestsellers
museum / gallery: exhibits, visitors | dinosaurs, history | paintings, openings
theater / cinema: seats, audience | stage, live actors | screen, film
restaurant / cafeteria: meals, tables | waiter, menu | tray, school
hotel / hostel: travelers, stay | room service, stars | bunks, backpackers
bank / post office: counter, queue | money, vault | letters, stamps
supermarket / bakery: food, shopping | carts, aisles | bread smell, oven
prison / zoo: cages, locked | guards, sentence | animals, tickets
park / garden: green, outdoors | benches, public | planting, backyard
farm / ranch: rural, animals | crops, barn | cowboys, cattle
airport / harbor: travel, arrivals | runway, security | ships, docks
lighthouse / windmill: tower, rotates | coast, beam | grain, Netherlands
pyramid / skyscraper: tall, impressive | Egypt, tomb | glass, offices
tent / cabin: camping, shelter | fabric, poles | logs, chimney
igloo / snowman: snow, built by hand | dome, Arctic | carrot nose, scarf
fountain / waterfall: falling water, splash | coins, plaza | cliff, natural
statue / painting: art, museum | marble, pedestal | canvas, frame
door / window: opening, house | knob, knock | pane, view
wall / fence: barrier, boundary | bricks, paint | pickets, yard
roof / ceiling: above, top | rain, shingles | lamp, indoors
stairs / ladder: climb, steps | banister, floors | rungs, portable
kitchen / bathroom: sink, room | stove, cooking | shower, towel
bedroom / living room: home, carpet | sleep, pillow | sofa, guests
attic / basement: storage, dusty | under the roof, top | under the house, damp
chair / stool: seat, legs | backrest, dining | bar, no back
sofa / armchair: cushions, sitting | several people, lying | one person, grandfather
bed / hammock: sleep, rest | mattress, blanket | trees, swinging
desk / dining table: flat top, four legs | office, homework | meals, plates
lamp / flashlight: light, bulb | shade, bedside | battery, beam
mirror / photograph: image, face | reflection, reversed | camera, memory
curtain / blinds: window, privacy | fabric, folds | slats, cord
carpet / blanket: soft, woven | floor, vacuum | bed, warm
pillow / mattress: bed, soft | head, feathers | springs, heavy
shelf / drawer: storage, furniture | books, wall | socks, pull out
clock / calendar: time, wall | hands, ticking | months, dates
watch / bracelet: wrist, jewelry | time, ticks | beads, charm
vase / bucket: holds water, container | flowers, delicate | mop, handle
broom / vacuum cleaner: floor, dust | witch, bristles | electric, loud
soap / shampoo: wash, bathroom | bar, hands | hair, bottle
toothbrush / comb: bristles, daily care | mouth, dentist | hair, parting
towel / napkin: wipe, cloth | shower, beach | dinner, lap
razor / scissors: blades, cut | beard, shave | paper, two loops
oven / microwave: heat, kitchen | baking, roast | fast, beeps
refrigerator / freezer: cold, kitchen | milk, leftovers | frozen peas, below zero
dishwasher / washing machine: appliance, water | plates, cutlery | laundry, spin
toaster / blender: small appliance, breakfast | slices, pops up | smoothie, whirring
fork / spoon: cutlery, eating | prongs, pasta | soup, stir
knife / sword: blade, sharp | kitchen, butter | knight, duel
plate / bowl: dishes, food | flat, dinner | deep, cereal
cup / bottle: drinking, container | handle, saucer | cap, neck
pan / pot: stove, cooking | frying, flat | boiling, deep
apron / gloves: protect, cooking | chest, strings | fingers, pair
hammer / screwdriver: tool, hand | nails, hit | turn, Phillips
saw / axe: wood, cut | teeth, carpenter | chop, lumberjack
drill / wrench: tool, workshop | holes, electric | bolts, plumber
shovel / rake: garden, long handle | digging, hole | leaves, teeth
nail / screw: fasten, metal | hit, flat head | thread, turn
glue / tape: stick, repair | liquid, paste | roll, adhesive strip
needle / pin: sharp, sewing | thread, eye | fasten, cushion
lock / key: door, security | padlock, combination | turn, pocket
umbrella / raincoat: wet weather, dry | open overhead, handle | hood, wear
backpack / suitcase: luggage, carry | straps, shoulders | wheels, airport
wallet / purse: money, carry | pocket, cards | handbag, strap
basket / box: container, carry | woven, picnic | cardboard, square
pen / pencil: writing, hand | ink, permanent | eraser, graphite
book / magazine: pages, reading | novel, chapters | glossy, monthly
newspaper / letter: paper, news | headlines, daily | envelope, personal
notebook / diary: blank pages, writing | school, notes | secrets, every day
map / globe: geography, countries | folded, route | sphere, spins
ruler / scale: measure, numbers | length, centimeters | weight, kilograms
chalk / crayon: coloring, stick | blackboard, dust | wax, children
stamp / sticker: adhesive, small | mail, postage | decoration, album
dictionary / encyclopedia: reference, thick | definitions, spelling | articles, facts
computer / calculator: electronic, numbers | internet, keyboard | sums, pocket
phone / radio: voice, signal | call, text | stations, antenna
television / computer monitor: screen, watch | remote, channels | desk, pixels
camera / telescope: lens, look | pictures, flash | stars, far
microscope / binoculars: lenses, magnify | cells, laboratory | birds, two eyes
printer / scanner: office, paper | ink, pages out | copies in, digital
keyboard / mousepad: desk, computer | letters, typing | mat, pointer
battery / charger: power, phone | stored, runs out | plug, cable
robot / drone: machine, remote | android, factory | flies, propellers
headphones / loudspeaker: sound, music | ears, private | loud, party
microphone / megaphone: voice, louder | stage, karaoke | crowd, cone
email / text message: digital, send | subject line, inbox | phone, short
website / app: online, design | browser, links | phone, install
password / fingerprint: unlock, identity | letters and digits, forget | skin, unique
guitar / violin: strings, music | chords, pick | bow, orchestra
piano / organ: keys, music | hammers, grand | church, pipes
drum / tambourine: beat, rhythm | sticks, kit | shaken, jingles
flute / clarinet: woodwind, blow | silver, sideways | reed, black
trumpet / trombone: brass, blow | valves, fanfare | slide, long
harp / lyre: plucked, strings | angel, tall | ancient Greece, small
singer / dancer: performer, stage | voice, song | moves, ballet
opera / musical: stage, songs | aria, Italian | Broadway, tap
jazz / blues: music, America | improvisation, saxophone | sadness, twelve bars
concert / festival: music, crowd | tickets, one evening | several days, tents
football / rugby: ball, team | goal, round ball | try, scrum
basketball / volleyball: ball, hands | hoop, dribble | net, spike
baseball / cricket: bat, pitch | home run, diamond | wicket, innings
tennis / badminton: racket, net | serve, yellow ball | shuttlecock, light
golf / croquet: ball, lawn | clubs, holes | mallet, hoops
boxing / wrestling: fight, ring | punches, gloves | holds, mat
swimming / diving: water, pool | laps, strokes | board, plunge
running / walking: legs, outdoors | sweat, race | slow, stroll
skating / surfing: balance, board or blades | ice, rink | waves, ocean
archery / darts: aim, target | bow, arrows | pub, board
chess / checkers: board, opponent | king, knight | jump, crowned
poker / blackjack: cards, casino | bluff, hands | twenty-one, dealer
dice / dominoes: game, dots | roll, cube | tiles, chain
puzzle / crossword: solving, pastime | pieces, picture | clues, letters
marathon / triathlon: endurance, race | forty-two kilometers, running | three disciplines, bicycle
yoga / gymnastics: flexible, body | breathing, calm | somersault, Olympics
fishing / hunting: outdoors, catch | rod, bait | rifle, deer
camping / hiking: nature, outdoors | sleeping outside, campfire | trail, boots
medal / trophy: award, winner | neck, ribbon | cup, shelf
coach / referee: sports, whistle | training, tactics | rules, penalty
doctor / nurse: hospital, patients | diagnosis, surgery | care, shifts
dentist / barber: chair, appointment | teeth, drill | hair, shave
teacher / professor: education, lectures | children, classroom | university, research
lawyer / judge: court, law | client, argues | gavel, decides
police officer / firefighter: uniform, emergency | arrest, crime | hose, smoke
soldier / knight: fight, armor | army, rifle | medieval, horse
pilot / astronaut: flying, training | airline, cockpit | space, weightless
sailor / pirate: sea, ship | navy, knots | treasure, eye patch
farmer / gardener: plants, soil | crops, tractor | flowers, pruning
chef / waiter: restaurant, food | cooks, recipes | serves, tips
painter / sculptor: art, studio | brush, colors | chisel, clay
writer / journalist: words, publish | novels, imagination | news, interviews
actor / clown: performer, audience | roles, Hollywood | red nose, circus
photographer / film director: camera, light | wedding, still pictures | scenes, action
carpenter / plumber: tools, repairs | wood, furniture | pipes, leaks
electrician / mechanic: fixes, workshop | wires, sockets | cars, oil
tailor / shoemaker: measure, handcraft | suits, sewing | leather, soles
scientist / detective: evidence, questions | laboratory, theory | crime, clues
king / president: leader, power | crown, inherits | elected, term
prince / duke: nobility, title | heir, fairy tale | estate, rank
spy / thief: secret, sneaks | agent, gadgets | steals, burglary
magician / witch: magic, hat | tricks, rabbit | broom, cauldron
angel / fairy: wings, magical | heaven, halo | tiny, wand
ghost / vampire: scary, night | sheet, haunts | blood, fangs
zombie / mummy: undead, horror | brains, apocalypse | bandages, Egypt
dragon / dinosaur: giant, reptile | breathes fire, legend | extinct, fossils
unicorn / mermaid: myth, fantasy | horn, rainbow | tail, sings
giant / dwarf: fairy tale, size | huge, beanstalk | short, mines
baby / toddler: small child, diapers | newborn, crib | first steps, talks
grandmother / aunt: relative, family | old, knitting | sister of a parent, cousins
brother / cousin: relative, family | same parents, sibling | uncle's child, reunion
husband / boyfriend: partner, romance | married, ring | dating, not yet engaged
friend / neighbor: person you know, chat | trust, close | next door, street
wedding / birthday: party, celebration | bride, vows | age, candles
Christmas / Halloween: holiday, children | presents, December | costumes, October
funeral / graduation: ceremony, speeches | coffin, mourning | diploma, caps
picnic / barbecue: outdoors, food | blanket, basket | grill, charcoal
vacation / weekend: free time, rest | weeks, travel | two days, Saturday
shirt / sweater: upper body, sleeves | buttons, collar | wool, warm
pants / skirt: lower body, clothing | two legs, zipper | hem, twirls
shoes / boots: feet, pair | sneakers, laces | rain, ankle
socks / stockings: feet, pairs | ankle, holes | nylon, Santa
hat / helmet: head, wear | brim, sun | safety, hard
scarf / necktie: neck, wear | winter, wool | suit, knot
coat / cape: outer wear, shoulders | buttons, winter | superhero, flows
dress / bathrobe: one piece, wear | gown, elegant | terry, morning
jeans / shorts: casual, pockets | denim, blue | summer, knees
belt / suspenders: holds up, trousers | buckle, waist | clips, shoulders
ring / earring: jewelry, small | finger, proposal | lobe, pierced
necklace / crown: worn, gold | throat, pendant | head, queen
glasses / goggles: eyes, lenses | reading, frame | swimming, strap
button / zipper: close, clothing | round, holes | teeth, slide
lipstick / nail polish: cosmetics, red | mouth, kiss | fingers, remover
perfume / deodorant: smell, spray | expensive, scent | armpit, sweat
eye / ear: face, sense | sees, lashes | hears, lobe
nose / mouth: face, breathing | smell, sneeze | teeth, speaks
hand / foot: end of a limb, five | fingers, wave | toes, kick
elbow / knee: joint, bends | arm, funny bone | leg, kneel
heart / lung: chest, organ | beats, love | breath, smoke
brain / stomach: organ, inside | thinking, skull | digestion, hungry
hair / beard: grows, barber | head, braid | chin, men
tooth / bone: hard, white | bite, dentist | skeleton, dog
blood / sweat: body liquid, salty | red, vein | exercise, skin
cold / fever: sick, bed | runny nose, sneeze | thermometer, hot
pill / vaccine: medicine, health | swallow, tablet | injection, prevents
bandage / cast: injury, wrapped | cut, adhesive | broken bone, plaster
poem / song: verses, rhyme | recited, read | melody, sung
novel / short story: fiction, author | hundreds of pages, chapters | brief, one sitting
joke / riddle: clever, told | punchline, laugh | answer, puzzling
dream / memory: mind, images | asleep, unreal | past, recall
happiness / pride: good feeling, emotion | smile, joy | achievement, lion
fear / anger: strong emotion, bad | scared, dark | yelling, red face
coin / banknote: money, pay | metal, flip | paper, folded
tax / fine: pay, government | income, yearly | parking, punishment
flag / anthem: nation, patriotic | pole, colors | sung, stand up
passport / visa: border, travel | booklet, identity | permission, stamped
election / lottery: tickets or ballots, winners | candidates, campaign | luck, jackpot
war / battle: soldiers, fight | years, countries | single day, field
"""


_IRREGULAR = {"mouse": "mice", "goose": "geese", "foot": "feet", "tooth": "teeth", "man": "men", "woman": "women",
              "child": "children", "die": "dice", "person": "people"}  # fmt: skip
_NOUNS = frozenset({"ham", "pig", "rat", "ram", "bus"})
"""Words with a short vowel of which there is no `-er`: a hammer has nothing to do with ham."""

_DOUBLED = re.compile(r"([a-z])\1")


class WordPair(NamedTuple):
    """Two near words, and hints that a scripted player gives for either of them or for one alone."""

    words: tuple[str, str]
    shared: tuple[str, ...]
    own: dict[str, tuple[str, ...]]


def _read(line: str) -> WordPair:
    words, _, hints = line.partition(": ")
    first, second = words.split(" / ")
    shared, of_first, of_second = (tuple(part.strip().split(", ")) for part in hints.split("|"))
    return WordPair((first, second), shared, {first: of_first, second: of_second})


@lru_cache(maxsize=1)
def pairs() -> dict[str, tuple[WordPair, ...]]:
    """Returns the pairs of each split, `train` and `heldout`."""
    every = [_read(line) for line in _PAIRS.strip().splitlines()]
    train = tuple(pair for at, pair in enumerate(every) if at % 5 != 4)
    return {"train": train, "heldout": tuple(every[4::5])}


@lru_cache(maxsize=1)
def pair_of() -> dict[str, WordPair]:
    """Returns the pair in which each word stands."""
    return {word: pair for split in pairs().values() for pair in split for word in pair.words}


def letters(text: str) -> str:
    """Returns `text` in lower case and without accents."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(char for char in decomposed if not unicodedata.combining(char))


@lru_cache(maxsize=2048)
def _forms(part: str) -> frozenset[str]:
    """Returns the inflections of a word, by the rules of English spelling."""
    endings = {part: ["", "s", "es", "ed", "ing", "er", "ers", "ish", "like"]}
    if part[-1] == "e":
        endings[part] = ["", "s", "like"]
        if part[-2] != "e":  # "bed" and "beer" are none of "bee"
            endings[part] += ["d", "r", "rs"]
            endings[part[:-1]] = ["ing", "y", "ish"]
    elif part[-1] == "y":
        endings[part[:-1] + "i"] = ["es", "ed", "er", "ers"]
    elif part[-1] not in "wx" and part[-2] in "aeiou":
        endings[part + part[-1]] = ["ed", "ing", "y"] + (["er", "ers"] if part not in _NOUNS else [])
    if part.endswith(("f", "fe")):
        endings[part.rstrip("e")[:-1] + "v"] = ["es"]
    forms = {stem + ending for stem, each in endings.items() for ending in each}
    return frozenset(forms | {_IRREGULAR.get(part, part)})


def _spelled(tokens: list[str], part: str) -> bool:
    """Returns whether neighbours are the word in pieces ("cof fee"), or single letters, others apart, hold it."""
    if part in "".join(token for token in tokens if len(token) == 1):
        return True
    for at, token in enumerate(tokens):
        joined = token
        for other in tokens[at + 1 :]:
            if not part.startswith(joined) or joined == part:
                break
            joined += other
        if joined == part and token != part:
            return True
    return False


def says_word(clue: str, word: str) -> bool:
    """Returns whether `clue` says `word`, a part or an inflection of it, or spells it (letters may be doubled).

    >>> [says_word(clue, "wolf") for clue in ("Wolves howl", "w-o-l-f", "wo lf", "werewolf", "golf")]
    [True, True, True, True, False]
    """
    text = letters(clue)
    pieces = re.findall("[a-z]+", text)
    tokens = [*pieces, *(re.sub("[^a-z]", "", piece) for piece in text.split())]
    for part in re.findall("[a-z]{3,}", letters(word)):
        forms = _forms(part)
        if any(token in forms or (len(part) > 3 and part in token) for token in tokens) or _spelled(pieces, part):
            return True
        squeezed = _DOUBLED.sub(r"\1", part)
        if len(squeezed) > 3 and any(_DOUBLED.sub(r"\1", token) == squeezed for token in tokens):
            return True
    return False
