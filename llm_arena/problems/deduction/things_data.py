"""The data of `things`: its properties and secrets. Written by hand for this library."""

from __future__ import annotations

PROPERTIES = """
animal | Is it an animal? | creature
mammal | Is it a mammal?
bird | Is it a bird?
fish | Is it a fish?
insect | Is it an insect?
reptile | Is it a reptile?
amphibian | Is it an amphibian?
plant | Is it a plant?
tree | Is it a tree?
flower | Is it a flower?
food | Is it a food? | foodstuff
edible | Do people eat it? | is it edible; is it eaten; can people eat it; can it be eaten
fruit | Is it a fruit?
vegetable | Is it a vegetable? | veggie
drink | Is it a drink? | beverage; do people drink it
made | Is it made by people? | is it man-made; is it manmade; is it made by humans; is it human-made
tool | Is it a tool?
vehicle | Is it a vehicle?
instrument | Is it a musical instrument?
worn | Is it worn on the body? | do people wear it; can people wear it; is it worn; is it worn by people
clothing | Is it a piece of clothing? | clothing; is it clothes; item of clothing
furniture | Is it a piece of furniture? | furniture
building | Is it a building?
nature | Is it a part of nature that is not alive?
person | Is it a person with a certain job? | person; human; job; profession; occupation; human being
sport | Is it a sport or a game? | game or a sport
athletic | Is it a sport?
game | Is it a game?
body | Is it a part of the human body? | body part; part of the body; human body part
toy | Is it a toy?
big | Is it bigger than a person? | is it bigger than a human; is it larger than a person; is it larger than a human
hand | Does it fit in one hand? | does it fit in your hand; can it fit in one hand; does it fit in a hand
fur | Is it covered with fur? | does it have fur; is it furry
four | Does it walk on four legs? | does it walk on all fours
flies | Can it fly? | does it fly; is it able to fly
water | Does it spend much of its life in water? | does it live in water; is it aquatic; aquatic animal
pet | Is it a common pet? | pet; is it kept as a pet
farm | Is it a farm animal?
hunts | Is it known as a hunter of other animals? | predator
striped | Is it known for stripes? | does it have stripes; is it striped
spotted | Is it known for spots? | does it have spots; is it spotted
horns | Does it have horns?
antlers | Does it have antlers?
works | Is it an animal used for riding or carrying?
savanna | Is it typical of the African savanna? | does it live in the savanna; does it live in the african savanna
night | Is it known for being active at night? | is it nocturnal; is it active at night
arctic | Is it typical of the Arctic? | is it found in the arctic
antarctic | Is it typical of the Antarctic? | is it found in the antarctic; is it typical of antarctica
jumps | Is it known for jumping?
venom | Is it venomous?
sting | Does it sting? | can it sting
shell | Does it have a shell?
tail | Does it have a long tail?
extinct | Is it extinct?
red | Is it usually red?
orange | Is it usually orange in color? | is it orange
yellow | Is it usually yellow?
green | Is it usually green?
brown | Is it usually brown?
black | Is it usually black?
partblack | Is it usually black, at least in part? | is it at least partly black
white | Is it usually white?
partwhite | Is it usually white, at least in part? | is it at least partly white
gray | Is it usually gray?
pink | Is it usually pink?
blue | Is it usually blue?
purple | Is it usually purple?
sweet | Does it taste sweet? | is it sweet
sour | Does it taste sour? | is it sour
salty | Does it taste salty? | is it salty
spicy | Is it spicy? | does it taste spicy
baked | Is it baked in an oven? | is it baked
meat | Is there usually meat in it? | does it contain meat; does it have meat in it
dairy | Is it milk or made from milk? | dairy product; is it dairy
grain | Is it grain, or made from grain? | is it made from grain
flour | Is it made with flour? | is it made from flour; is it made of flour; does it contain flour
frozen | Is it eaten frozen?
tropical | Is it a tropical fruit or plant? | tropical plant or fruit
stone | Does it have one large stone or seed inside? | does it have a pit
root | Does it grow under the ground? | does it grow underground
round | Is it round like a ball? | is it spherical; is it ball-shaped; is it shaped like a ball
thin | Is it long and thin? | is it thin and long
citrus | Is it a citrus fruit?
leaves | Are its leaves eaten? | do people eat its leaves
nut | Is it a nut?
seed | Is it a seed?
spread | Is it spread on bread or poured on food?
alcohol | Does it contain alcohol? | is it alcoholic; alcoholic drink; alcoholic beverage
warm | Is it usually served hot?
fizzy | Is it fizzy? | is it carbonated; does it have bubbles
liquid | Is it a liquid?
wood | Is it usually made of wood? | is it wooden
metal | Is it usually made of metal? | is it metal
cloth | Is it usually made of cloth? | is it made of fabric; is it made from cloth; is it made from fabric
leather | Is it usually made of leather?
glass | Is it made of glass, at least in part? | is it at least partly made of glass
paper | Is it made of paper? | is it made from paper
electric | Is it an electric device? | electronic device; electrical device
wheels | Does it have wheels?
engine | Does it have an engine?
sharp | Is it sharp?
kitchen | Is it a kitchen utensil or appliance? | kitchen appliance or utensil
dining | Is it tableware?
bath | Is it usually found in the bathroom?
bedroom | Is it usually found in the bedroom?
outside | Is it mostly used outdoors? | is it used outside
wall | Does it usually hang on a wall or a window?
writes | Is it used for writing or drawing? | is it used for drawing or writing
read | Is it something to read?
cleans | Is it used for cleaning? | is it used to clean
cuts | Is it used for cutting? | is it used to cut
measures | Does it measure something? | is it used to measure; is it used for measuring; measuring instrument
light | Is it known for giving light?
holds | Is it made to hold other things?
money | Is it money?
sound | Does it play music or speech? | does it play speech or music
screen | Does it have a screen?
heats | Is it used to heat things? | is it used for heating things; is it used for heating
sleep | Do people sleep on it or in it? | do people sleep in it or on it
sit | Do people sit on it?
pair | Are there two of it that belong together? | does it come in pairs; does it come in a pair
head | Is it worn on the head? | is it worn on your head
neck | Is it worn around the neck? | is it worn on the neck; is it worn around your neck
feet | Is it worn on the feet? | is it worn on your feet
legs | Is it worn on the legs? | is it worn on your legs
sole | Does it have a sole? | footwear; is it footwear
jewel | Is it jewelry? | piece of jewelry; is it jewellery; piece of jewellery
cold | Is it worn in cold weather? | is it worn when it is cold
rain | Is it a protection against rain? | does it protect against rain
women | Is it worn mostly by women?
rails | Does it run on rails? | does it run on tracks
floats | Is it a vehicle that travels on or under water? | watercraft
public | Does it carry many passengers? | does it carry many people
town | Is it a part of a town's public transport?
muscle | Is it a vehicle that is moved by muscle power?
rescue | Is it for emergencies? | is it used in emergencies
strings | Does it have strings?
blown | Is it played by blowing? | wind instrument; do people blow into it
keys | Does it have a keyboard?
struck | Is it played by hitting or shaking it? | percussion instrument
orchestra | Is it common in a symphony orchestra?
home | Is it a home that people live in? | home
worship | Is it a place of worship? | religious building
learn | Do people go there to learn? | do people study there; do people learn there
tall | Is it known for being tall?
shop | Is it a shop? | store
old | Does it make one think of the Middle Ages or of antiquity?
sky | Is it a part of nature that is seen in the sky?
space | Is it a body in outer space? | celestial body
falls | Does it fall from the sky? | is it precipitation
wet | Is it water or ice in nature? | is it ice or water in nature
land | Is it a piece of land?
disaster | Is it a natural disaster?
burns | Is it a part of nature that can burn you?
mineral | Is it a metal, a mineral or a stone? | mineral, a metal or a stone
ball | Is it played with a ball? | is it played using a ball; is a ball used
team | Is it played in teams? | team sport; is it played by teams; is it played in a team
bat | Is it played with a racket, a bat or a stick?
net | Do the players face each other over a net?
snow | Is it done on snow or ice? | is it done on ice or snow; winter sport
pool | Is it done in or on the water? | is it done on or in the water; water sport
board | Is it played sitting at a table? | is it played at a table
cards | Is it played with cards? | card game
fight | Do two opponents fight each other? | combat sport
weapon | Is a weapon used in it?
style | Do judges score its style?
health | Does this person look after people's health?
cooks | Does this person prepare or serve food?
law | Does this person work for law or safety?
stage | Does this person perform for an audience? | performer; entertainer
artist | Does this person make works of art? | does this person make art
steers | Does this person steer a vehicle?
aloft | Does this person work in the air or in space?
builds | Does this person build or repair things?
fields | Does this person work mostly outdoors? | does this person work outside
uniform | Does this person usually wear a uniform?
desk | Does this person work mostly at a desk?
inside | Is it inside the body? | is it in the body
face | Is it a part of the head? | is it part of the head
limb | Is it an arm or a leg, or a part of one?
lower | Is it below the waist?
joint | Is it a joint that bends? | joint
sense | Does a person see, hear, smell or taste with it? | sense organ
hard | Is it a hard part of the body?
"""
"""A line is `key | question | others that mean the same; ...`; one without a verb stands for `Is it a ...?`."""

SECRETS = """
= animal mammal fur four ?tail
dog: pet tail ?hunts ?works ?edible ?jumps ?brown ?spotted
cat: pet hunts tail ?night ?jumps ?striped ?spotted ?edible; hamster: pet hand night -tail
guinea pig: pet -tail ?hand ?edible; rabbit: pet jumps -tail ?farm ?edible ?night ?white ?gray ?brown
horse: big farm brown tail works ?pet ?jumps ?sit ?edible; donkey: farm gray tail works ?pet ?big ?sit ?edible
cow: big farm horns tail edible ?spotted ?works ?partblack ?partwhite ?brown ?pet; sheep: farm white edible ?horns
goat: farm horns edible -tail ?partwhite ?white ?jumps ?pet; mouse: hand gray night tail ?pet ?white ?brown
rat: gray night tail ?pet ?hand ?brown; squirrel: ?brown tail ?hand ?jumps ?red ?gray
hedgehog: hand night ?fur brown ?pet ?hunts ?round ?sharp -tail
lion: big hunts savanna tail yellow ?night ?jumps ?brown
tiger: big hunts striped orange tail partblack ?partwhite ?night ?jumps
leopard: hunts savanna spotted tail yellow partblack ?night ?big ?jumps
cheetah: hunts savanna spotted tail ?yellow ?partblack ?big; wolf: hunts gray tail ?night ?arctic ?big
fox: hunts red tail ?night ?arctic ?orange; brown bear: big brown ?hunts -tail
polar bear: big white hunts arctic ?water -tail; panda: partblack partwhite ?big -tail; koala: gray ?night -tail
deer: antlers brown ?horns ?big ?spotted ?jumps ?night ?edible -tail
reindeer: antlers arctic ?horns ?brown ?gray ?big ?works ?farm ?edible -tail
buffalo: big horns black savanna ?farm ?works ?brown ?edible; camel: big brown works ?farm ?yellow ?sit ?edible
zebra: big savanna striped partblack partwhite tail
giraffe: big savanna spotted yellow tall tail ?brown ?orange ?horns ?thin
raccoon: night striped gray tail partblack ?hunts; skunk: partblack partwhite striped tail night
beaver: brown water tail night; hyena: savanna hunts spotted ?striped ?night ?brown
= animal mammal ?tail
elephant: four big savanna gray works ?fur ?tall ?sit; hippopotamus: four big gray water -tail ?savanna ?night
rhinoceros: four big savanna gray horns; pig: four farm pink edible -tail ?fur ?big ?pet
whale: water big gray ?blue ?partblack ?jumps ?hunts ?arctic ?antarctic ?edible ?fur
dolphin: water gray big jumps ?hunts; seal: water fur gray -tail ?big ?hunts ?arctic ?antarctic ?spotted ?brown
walrus: water big brown arctic -tail ?fur ?hunts
orca: water big hunts partblack partwhite ?jumps ?arctic ?antarctic ?spotted
kangaroo: fur jumps brown tail ?big ?night ?gray ?edible; bat: fur flies night hand ?four ?brown ?black ?hunts
gorilla: fur four black big -tail; monkey: fur four tail brown ?savanna ?pet ?jumps
mammoth: four fur big extinct brown ?tall
= animal bird flies ?tail
eagle: hunts brown ?savanna ?partwhite; owl: hunts night ?brown ?white ?arctic; parrot: pet green ?red ?blue
pigeon: gray ?hand ?pet ?edible; crow: black ?hunts; swan: white water -tail
duck: farm water edible -tail ?pet ?white ?brown ?green; goose: farm white water edible -tail ?gray
seagull: partwhite ?white ?gray ?water ?hunts -tail; flamingo: pink ?water ?tall ?savanna -tail
stork: partwhite ?white partblack ?tall ?water ?hunts ?savanna -tail; hummingbird: hand green; sparrow: hand brown
robin: hand red ?brown; woodpecker: partblack ?red ?partwhite; peacock: blue tail ?green ?spotted ?farm
penguin: -flies partblack partwhite water antarctic -tail ?hunts ?jumps
ostrich: -flies big savanna partblack ?partwhite ?black ?tall ?farm ?works ?edible
rooster: farm red tail edible ?flies ?pet ?brown ?white; turkey: farm brown edible ?flies ?partblack
dodo: -flies extinct gray -tail; falcon: hunts gray ?brown
= animal fish water ?tail
shark: big hunts gray ?edible ?partwhite; goldfish: pet hand orange; eel: thin ?hunts ?night ?edible ?big
= animal water
octopus: edible ?hunts ?venom ?night ?big ?red; squid: white edible ?pink ?big ?hunts ?night
jellyfish: venom sting ?hunts; starfish: hand orange ?red ?hunts; crab: shell red edible ?hand ?orange ?brown
lobster: shell red tail edible ?blue ?brown; oyster: shell hand gray edible ?salty
= animal reptile
python: hunts thin ?spotted ?big ?tail ?pet ?night ?savanna ?brown
cobra: hunts venom thin ?tail ?savanna ?brown ?black
crocodile: hunts big four water green tail ?brown ?gray ?savanna ?night ?edible
lizard: four hand tail ?pet ?green ?brown ?hunts ?venom; chameleon: four hand green tail ?pet ?hunts
sea turtle: shell green water ?big ?four ?edible ?brown; tortoise: shell four brown pet ?green ?big ?savanna
dinosaur: big extinct tail ?tall ?four ?horns ?hunts ?green ?flies ?shell
= animal amphibian
frog: four hand green jumps water ?pet ?hunts ?night ?venom ?edible
= animal insect hand
bee: flies venom sting striped yellow partblack ?farm ?fur ?brown
wasp: flies venom sting striped yellow partblack hunts; ant: ?venom ?sting ?flies ?black ?red ?brown ?edible
butterfly: flies ?spotted ?orange ?yellow ?partblack ?partwhite; moth: flies night brown ?gray ?fur ?white
housefly: flies black ?gray; mosquito: flies ?sting night ?water ?gray ?black ?brown
cockroach: brown night ?flies ?black; ladybug: flies red spotted partblack ?round ?hunts ?shell
dragonfly: flies thin ?water ?hunts ?blue ?green ?tail; grasshopper: jumps green ?flies ?brown ?edible
flea: jumps ?black ?brown; firefly: flies night light ?hunts ?brown ?black
caterpillar: green thin ?fur ?sting ?striped ?spotted
= animal hand
spider: hunts venom ?sting ?night ?pet ?fur ?black ?brown
scorpion: venom sting tail ?hunts ?night ?shell ?black ?brown; snail: shell ?brown ?edible ?night ?water
earthworm: thin ?pink ?brown ?night ?red
= food edible fruit sweet hand ?plant
apple: red round ?green ?sour ?yellow; pear: green ?yellow; banana: yellow tropical ?thin
peach: orange stone round ?fur ?pink ?yellow; apricot: orange stone ?round ?yellow
plum: purple stone round ?blue ?red; cherry: red stone round ?sour; strawberry: red; raspberry: red sour ?round ?pink
blueberry: blue round ?sour ?purple; grape: ?round ?green ?purple ?sour ?red ?seed; date: brown stone ?tropical
kiwi: ?green brown ?sour ?tropical ?round ?fur; mango: ?orange ?yellow tropical stone ?green ?red
orange: orange citrus round ?sour ?tropical; lemon: yellow citrus sour -sweet ?tropical
lime: green citrus sour -sweet ?tropical ?round; grapefruit: citrus sour round ?sweet ?yellow ?pink ?orange ?tropical
pineapple: tropical yellow -hand ?sour ?brown ?sharp
coconut: tropical brown round shell -hand ?sweet ?nut ?seed ?partwhite ?fur ?stone
watermelon: green round -hand ?striped; melon: ?yellow ?green ?orange round -hand
papaya: tropical orange -hand ?green ?yellow; pomegranate: red round sour
avocado: green stone -sweet tropical ?vegetable ?round; olive: green stone -sweet ?black ?vegetable ?round salty
blackberry: black ?sour ?round ?purple; cranberry: red sour round -sweet
= food edible vegetable ?plant
carrot: orange thin root hand ?sweet ?warm; potato: root brown hand warm ?round ?yellow ?baked
onion: root round hand ?spicy ?brown ?white ?yellow ?red; garlic: root white hand ?spicy ?round
beet: root round hand red ?purple ?sweet ?leaves ?warm; radish: root red hand round ?spicy partwhite ?pink
ginger: root brown ?vegetable ?spicy ?hand ?yellow ?tropical; sweet potato: root orange sweet warm ?hand ?brown ?baked
tomato: red round hand ?fruit ?sweet; cucumber: green ?fruit ?thin ?hand
pumpkin: orange round ?fruit ?big ?warm ?sweet; eggplant: purple ?fruit ?hand ?warm
chili pepper: red spicy thin hand ?fruit ?green; cabbage: green round leaves ?warm; lettuce: green leaves ?round
spinach: green leaves warm; broccoli: green warm ?flower ?hand; cauliflower: white ?warm ?flower ?round
celery: green thin ?leaves ?hand; asparagus: green thin warm ?hand
corn: yellow sweet ?hand ?seed ?grain ?warm ?fruit ?thin; pea: green round hand seed ?sweet ?warm ?fruit
green bean: green thin hand warm ?fruit ?seed; mushroom: brown hand -plant ?white ?warm ?root
= food edible nut hand ?plant ?fruit ?seed
walnut: shell brown round; peanut: shell root ?brown ?salty; almond: brown shell
= food edible made ?hand
bread: grain flour baked brown ?warm ?salty; toast: grain flour brown warm hand ?baked
bagel: grain flour baked hand ?brown ?salty; croissant: grain flour baked hand brown ?yellow ?sweet ?warm
pretzel: grain flour baked hand brown ?thin salty; cake: grain flour baked sweet -hand
cookie: grain flour baked sweet hand ?brown ?round; apple pie: baked sweet grain flour warm ?brown -hand ?fruit
donut: grain flour sweet hand ?warm ?brown; pancake: grain flour sweet warm ?brown ?yellow
pizza: grain flour baked warm -hand ?meat ?round ?spicy ?dairy ?salty
spaghetti: grain flour warm thin -hand ?yellow ?meat; lasagna: grain flour baked warm meat -hand ?dairy ?salty
rice: grain white warm ?made ?seed ?plant ?salty; soup: warm liquid -hand ?drink ?meat ?spicy ?salty
porridge: grain warm -hand ?white ?sweet ?liquid
popcorn: grain hand partwhite ?white ?yellow ?warm ?sweet ?seed ?salty
hamburger: meat warm grain ?flour ?baked ?round ?salty; hot dog: grain meat warm thin ?flour salty
sausage: meat warm ?thin ?red ?brown salty; bacon: meat warm red ?thin ?pink ?made salty
ham: meat pink -hand ?warm ?baked ?made salty; steak: meat warm brown ?made ?red ?salty
meatball: meat warm round hand ?brown ?salty; taco: grain meat hand warm ?spicy ?flour ?shell ?yellow ?salty
sandwich: grain hand ?flour ?meat ?warm ?salty; cheese: dairy yellow ?salty; butter: dairy yellow spread ?salty
yogurt: dairy white sour -hand ?sweet ?drink ?liquid; ice cream: dairy frozen sweet ?white
whipped cream: dairy white sweet -hand ?spread; chocolate: sweet brown hand ?dairy; lollipop: sweet hand ?round ?red
marshmallow: sweet white hand ?pink; honey: sweet yellow spread -made ?liquid ?brown ?orange; sugar: sweet white ?made
salt: white ?made ?mineral ?nature salty; ketchup: red spread ?sweet ?liquid ?sour ?salty
mustard: yellow spread ?spicy ?liquid ?sour ?salty; jam: sweet red spread ?fruit ?purple
peanut butter: brown spread ?sweet ?nut ?salty; omelet: yellow warm -hand ?salty
egg: shell hand -made ?partwhite ?brown ?warm ?white ?round ?salty
french fries: yellow warm thin hand ?vegetable salty; curry: spicy warm -hand ?meat ?yellow ?liquid ?salty
popsicle: frozen sweet hand; salad: green leaves -hand ?vegetable
= drink liquid
water: ?nature ?wet ?cleans; milk: white dairy ?food ?sweet; coffee: black warm made ?brown ?sweet
tea: brown warm made ?green ?leaves ?sweet; hot chocolate: brown warm sweet ?dairy made
orange juice: orange sweet made ?sour ?yellow ?citrus ?fruit; lemonade: sour sweet yellow made ?fizzy
cola: brown sweet fizzy made ?black; beer: alcohol fizzy yellow made grain ?brown; red wine: alcohol red made ?sweet
champagne: alcohol fizzy yellow made ?sweet; whiskey: alcohol brown made grain ?yellow
= plant
oak: tree big wood ?tall ?green ?brown; pine tree: tree big tall green wood ?brown
palm tree: tree big tall tropical wood ?green ?brown ?edible ?thin ?fruit; rose: flower red ?hand ?pink ?sharp ?edible
tulip: flower ?hand ?red ?yellow; sunflower: flower yellow tall ?big ?edible ?seed
daisy: flower partwhite hand ?white ?yellow ?edible; cactus: green sharp ?flower ?tall ?big ?round ?edible ?sting
fern: green ?leaves; grass: green thin ?savanna ?sit; moss: green hand
bamboo: green tall big thin ?wood ?tropical ?edible
= made vehicle big engine metal outside ?glass ?holds ?electric ?sit ?light
car: wheels ?sound ?screen; truck: wheels holds; bus: wheels public town; taxi: wheels ?yellow town ?black
ambulance: wheels partwhite rescue ?white; fire engine: wheels red rescue; motorcycle: wheels sit ?big ?black -holds
train: wheels rails public ?thin ?town ?sleep; tram: wheels rails public town
helicopter: flies ?wheels ?rescue ?public; airplane: flies public wheels ?tail ?white ?partwhite
rocket: flies ?space tall ?public ?thin ?white ?partwhite ?outside; submarine: floats ?thin ?gray ?black ?outside
motorboat: floats ?metal ?white ?partwhite ?rescue; cruise ship: floats public ?white ?partwhite ?tall ?sleep
= made vehicle outside ?sit
bicycle: wheels muscle metal sit ?big; skateboard: wheels muscle wood ?toy ?thin
sailboat: floats big ?partwhite ?white ?wood ?engine ?holds; canoe: floats muscle thin big ?wood
rowboat: floats muscle big wood ?holds; hot-air balloon: flies big ?round ?public ?cloth ?holds
sled: wood sit ?toy ?muscle ?big ?arctic ?metal; horse carriage: wheels wood big ?muscle ?old ?public ?holds
wheelchair: wheels sit metal muscle ?outside ?engine ?electric ?furniture ?big
= made instrument sound
guitar: wood strings ?electric; violin: wood strings orchestra; harp: wood strings orchestra tall ?big ?metal ?old
piano: wood strings keys big partblack partwhite ?black ?struck ?orchestra ?furniture
flute: metal blown orchestra thin ?wood; trumpet: metal blown orchestra ?yellow
saxophone: metal blown ?yellow ?orchestra; clarinet: wood blown orchestra black thin
harmonica: metal blown hand ?thin; drum: struck orchestra ?round ?wood ?metal ?big
xylophone: struck wood ?orchestra ?metal; accordion: keys ?blown ?wood; triangle: struck metal hand orchestra
church organ: keys big ?blown ?electric ?metal ?wood ?tall
= made worn clothing cloth ?bedroom
shirt: ?white; sweater: cold; coat: cold outside ?rain ?leather ?fur ?black
raincoat: rain outside ?yellow ?cold ?cloth; dress: women; skirt: women legs; jeans: legs blue ?pair
shorts: legs ?pair; socks: feet pair ?legs ?cold ?sole ?white; tights: legs women feet ?thin ?pair ?cold ?black
hat: head ?cold ?rain ?outside; scarf: neck cold ?thin outside ?head; necktie: neck thin; bow tie: neck hand ?black
gloves: cold pair ?outside ?leather ?hand; shoes: feet pair sole leather -cloth ?outside
boots: feet pair outside sole leather -cloth ?rain ?cold ?legs; slippers: feet pair bedroom sole ?cold ?bath
belt: leather thin -cloth ?black ?brown; pajamas: bedroom ?sleep ?pair ?legs; bathrobe: bath ?white ?cold
swimsuit: outside
= made worn
ring: jewel metal hand; necklace: jewel neck ?metal ?women ?thin ?hand; earrings: jewel pair hand women ?head ?metal
crown: jewel head metal old ?yellow; wristwatch: measures hand ?jewel ?metal ?glass ?electric ?leather ?screen
glasses: glass hand ?head ?pair; sunglasses: glass hand outside black ?head ?pair
helmet: head outside ?metal ?clothing ?old ?rescue
= made furniture
chair: wood sit; armchair: sit ?cloth ?leather ?sleep ?big ?wood; sofa: sit big ?cloth ?leather ?sleep ?wood
park bench: wood sit outside ?big; bed: sleep big bedroom wood ?sit; hammock: sleep cloth outside ?sit ?big ?strings
dining table: wood big; desk: wood ?bedroom ?holds ?big ?writes; bookshelf: wood holds ?tall ?big
wardrobe: wood holds big bedroom ?tall; nightstand: wood bedroom holds
= made
mirror: glass bath wall ?furniture ?bedroom; lamp: light electric ?furniture ?bedroom ?glass ?metal
candle: light thin ?white ?heats ?hand ?old; flashlight: light electric hand ?tool ?metal ?rescue ?glass ?outside
curtain: cloth wall ?bedroom ?big; carpet: cloth ?furniture ?sit ?bedroom ?big ?sleep
pillow: cloth bedroom sleep ?white ?sit; blanket: cloth bedroom ?big ?sleep ?heats
mattress: sleep big bedroom ?furniture ?sit ?white ?cloth; clock: measures wall ?electric ?round ?glass ?furniture
alarm clock: measures bedroom ?electric ?sound ?hand ?screen; vase: holds ?glass; broom: cleans thin ?tool ?wood
vacuum cleaner: cleans electric ?wheels ?engine ?tool; soap: cleans hand bath ?white; towel: cloth bath ?cleans ?white
toothbrush: cleans hand bath thin ?electric ?tool; comb: hand bath ?thin ?tool; shampoo: cleans bath liquid ?hand
bathtub: bath holds big white ?furniture ?sit; toilet: bath sit white ?furniture ?holds
toilet paper: bath paper white cleans ?hand
washing machine: cleans electric holds ?bath ?partwhite ?white ?metal ?engine; iron: heats electric ?metal ?tool ?hand
door: wood big ?glass; window: glass ?big; roof: big outside rain; chimney: outside tall big ?heats
ladder: tall ?tool ?big ?wood ?metal ?thin ?outside; rope: thin ?tool
= made kitchen
refrigerator: electric holds big ?white ?partwhite ?metal ?tall; oven: electric heats holds ?metal ?big ?glass
microwave: electric heats ?holds ?screen ?metal ?glass; kettle: heats holds ?electric ?metal
frying pan: heats metal ?holds ?black ?tool; fork: metal hand dining thin sharp ?tool
spoon: metal hand dining ?thin ?holds ?tool; kitchen knife: metal sharp cuts thin ?hand ?dining ?tool
plate: dining ?white ?hand ?holds ?kitchen ?round; bowl: dining holds ?hand ?kitchen ?white
cup: holds hand dining ?kitchen ?white; wine glass: glass holds hand dining ?kitchen; cutting board: wood ?cuts ?tool
rolling pin: wood thin ?tool ?hand; chopsticks: wood pair thin dining hand
kitchen scale: measures ?electric ?screen ?tool ?hand; blender: electric holds ?cuts ?glass ?engine
napkin: dining -kitchen hand paper cleans ?white ?cloth
= made tool
hammer: hand metal ?wood ?thin; screwdriver: metal hand thin ?sharp; saw: metal cuts sharp ?thin
axe: cuts sharp outside metal ?wood ?old; electric drill: electric hand ?engine ?sharp ?metal
shovel: outside ?metal ?wood ?thin; rake: outside thin ?metal ?wood ?sharp
lawn mower: outside cuts engine wheels ?sharp ?metal ?electric ?sit; scissors: metal hand cuts sharp ?pair ?kitchen
needle: metal hand sharp thin; tape measure: measures hand ?thin ?metal ?yellow
thermometer: measures hand glass thin ?electric ?screen; magnifying glass: glass hand
wheelbarrow: outside wheels holds ?metal ?big ?vehicle
= made
pen: writes hand thin ?tool; pencil: writes hand thin wood ?tool ?sharp ?yellow; chalk: writes hand thin white
notebook: writes paper ?read ?hand ?partwhite; book: paper read ?hand ?partwhite
newspaper: paper partblack partwhite read; envelope: paper holds hand ?white; postage stamp: paper hand
map: paper ?read ?wall ?outside; ruler: measures hand thin ?tool ?wood ?writes
computer: electric screen keys sound ?tool ?writes ?read ?glass ?measures
smartphone: electric screen hand sound ?writes ?read ?glass ?keys ?light ?measures ?tool ?money
television: electric screen sound ?light ?wall ?furniture ?glass; radio: electric sound ?screen ?hand
camera: electric screen hand ?glass ?black ?neck; printer: electric ?writes ?screen
headphones: electric sound head worn ?pair ?neck ?hand ?clothing; microphone: electric hand ?sound ?metal
light bulb: electric light glass hand ?round; remote control: electric hand thin ?black
drone: electric flies ?engine ?toy ?outside; backpack: holds cloth ?worn ?outside; suitcase: holds wheels
wallet: holds hand leather ?cloth ?money; umbrella: rain outside ?thin ?cloth ?black
coin: metal hand money ?mineral ?round ?old; key: metal hand ?tool; flag: cloth outside ?flies ?tall ?wall
teddy bear: toy cloth ?brown ?fur ?bedroom ?hand; doll: toy ?bedroom ?hand
kite: toy flies outside strings ?tail ?paper ?cloth; yo-yo: toy hand strings ?round
ball: toy round ?ball ?hand ?outside
= made building big ?glass ?holds
house: home ?sleep ?rain ?wood; castle: home old ?tall ?sleep ?glass
igloo: home white arctic ?sleep -glass ?wet ?round; skyscraper: tall glass ?home ?metal ?sleep
church: worship tall ?old; pyramid: old tall -glass -holds ?worship ?building; school: learn; hospital: rescue ?sleep
pharmacy: shop; prison: ?sleep ?home; lighthouse: light tall ?partwhite ?white; windmill: old ?tall ?wood ?home
barn: wood ?red ?sleep ?farm
= nature
sun: sky space big round yellow light burns; moon: sky space big round ?white ?gray ?light ?night ?yellow
star: sky space big light round ?burns ?white ?yellow ?night
comet: sky space big tail ?falls ?wet ?light ?white ?round; mountain: land big tall
volcano: land big tall burns ?disaster ?light; desert: land big yellow ?burns; island: land big
river: big wet liquid thin ?blue; lake: big wet liquid ?blue; ocean: big wet liquid blue salty
waterfall: big wet liquid tall ?white; glacier: big wet white arctic antarctic ?land ?blue
rain: wet falls liquid ?sky ?disaster; snow: wet white falls ?sky ?disaster; cloud: sky wet white big ?gray ?liquid
rainbow: sky big ?light ?wet; lightning: sky light burns ?disaster ?falls ?big ?thin ?white ?yellow
tornado: disaster big ?sky ?tall ?gray; earthquake: disaster ?big
fire: light burns ?heats ?made ?disaster ?red ?orange ?yellow ?big; sand: yellow mineral ?brown ?land ?burns
gold: metal yellow mineral ?jewel ?money; diamond: mineral hand ?jewel ?sharp
= person ?animal ?mammal
doctor: health ?rescue ?uniform; nurse: health uniform ?rescue; chef: cooks uniform; waiter: cooks ?uniform
farmer: fields ?steers; police officer: law uniform ?rescue ?steers ?fields; judge: law ?uniform ?desk ?black
teacher: ?desk ?stage; painter: artist ?builds ?fields; singer: stage ?artist ?sound
pilot: steers uniform aloft ?flies; bus driver: steers ?uniform ?law; sailor: fields uniform ?steers ?water
carpenter: builds ?artist ?fields; writer: desk artist; secretary: desk; astronaut: aloft uniform ?steers ?flies
= sport athletic game ?made
soccer: ball team outside; basketball: ball team ?jumps ?tall; volleyball: ball team net ?jumps
baseball: ball team bat outside; ice hockey: team bat snow; tennis: ball bat net outside ?team ?strings
badminton: bat net ?team ?strings; table tennis: ball bat net ?board ?team; golf: ball outside ?bat
bowling: ball ?team; water polo: pool ball team ?outside
= sport athletic ?made
swimming: pool ?outside; diving: pool style ?jumps ?outside; surfing: pool outside style; skiing: snow outside ?jumps
figure skating: snow style ?jumps ?team; gymnastics: style ?jumps; boxing: fight ?style
fencing: fight weapon ?old ?game
= sport game ?made
chess: board ?athletic ?fight ?partblack ?partwhite ?toy; poker: board cards ?paper
= body
eye: face pair sense ?hand partwhite ?round; ear: face pair sense; nose: face sense
tooth: face hard white hand ?sharp ?inside; tongue: face sense pink ?inside; hair: face thin ?fur; beard: face ?fur
arm: limb pair ?thin; elbow: limb pair joint; leg: limb pair lower ?thin; knee: limb pair lower joint
heart: inside red ?edible; brain: inside face ?edible ?gray ?sense; lung: inside pair; stomach: inside ?edible ?holds
bone: inside hard white ?limb ?thin ?lower; finger: limb thin hand ?joint; toe: limb lower hand ?joint
"""
"""A line `= a b ?c` opens a group whose secrets all have a and b; of c it is not clear. Then `name: d ?e -b` adds d,
says that e is not clear, and takes b back. What is not listed is "no"."""
