"""Define the label values of both miniature worlds, in the order of their codes."""

WORLDS = ("birds", "portraits")
SIZE = 64  # width and height of every image in pixels


def _names(text: str) -> tuple[str, ...]:
    return tuple(" ".join(name.split()) for name in text.split(","))


# Random split of 100 job titles from Chuang et al. (2023), repository chingyaoc/debias_vl (MIT).
TRAIN_PROFESSIONS = _names("""
    actor, architect, audiologist, author, baker, barber, blacksmith, bricklayer, bus driver,
    butcher, chef, chemist, cleaner, coach, comedian, computer programmer, construction worker,
    consultant, counselor, dancer, dentist, designer, dietitian, dj, doctor, driver, economist,
    electrician, engineer, entrepreneur, farmer, florist, graphic designer, hairdresser, historian,
    journalist, judge, lawyer, librarian, magician, makeup artist, mathematician, marine biologist,
    mechanic, model, musician, nanny, nurse, optician, painter, pastry chef, pediatrician,
    photographer, plumber, police officer, politician, professor, psychologist, real estate agent,
    receptionist, recruiter, researcher, sailor, salesperson, surveyor, singer, social worker,
    software developer, statistician, surgeon, teacher, technician, therapist, tour guide,
    translator, vet, videographer, waiter, writer, zoologist
    """)
TEST_PROFESSIONS = _names("""
    accountant, astronaut, biologist, carpenter, civil engineer, clerk, detective, editor,
    firefighter, interpreter, manager, nutritionist, paramedic, pharmacist, physicist, pilot,
    reporter, security guard, scientist, web developer
    """)
PROFESSIONS = (*TRAIN_PROFESSIONS, *TEST_PROFESSIONS)
GENDERS = ("male", "female")  # gender presentations
TONES = ("pale", "light-skinned", "tan", "brown-skinned", "dark-skinned")
AGES = ("young", "old")
HAIRS = ("black", "brown", "blond", "red")  # Old people always have grey hair.

CLASSES = ("landbird", "waterbird")
SPECIES = _names("""
    robin, sparrow, finch, wren, cardinal, crow, raven, magpie, jay, thrush, starling, oriole,
    warbler, woodpecker, cuckoo, nightingale, lark, swallow, bunting, tanager, grosbeak,
    flycatcher, vireo, nuthatch, gull, duck, pelican, albatross, cormorant, heron, egret, swan,
    goose, tern, puffin, penguin, loon, grebe, mallard, gannet, frigatebird, kittiwake, auklet,
    guillemot, merganser, stork, flamingo, ibis
    """)  # the first half are land birds
BACKGROUNDS = ("land", "water")
PLACES = (
    "forest",
    "mountain",
    "wood",
    "meadow",
    "ocean",
    "beach",
    "port",
    "lake",
)  # the first half are on land

# Fields that the judge predicts for portraits and birds, with the values of each column in
# `open_world`.
PEOPLE_FIELDS = {"profession": PROFESSIONS, "gender": GENDERS, "tone": TONES, "age": AGES}
BIRD_FIELDS = {"species": SPECIES, "place": PLACES}
COLUMNS = {
    "birds": {"label": CLASSES, "place": BACKGROUNDS, "species": SPECIES},
    "portraits": {
        **PEOPLE_FIELDS,
        "hair": HAIRS,
        "duty": ("on duty", "off duty"),
        "label": ("dark", "blond"),
    },
}
