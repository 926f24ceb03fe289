"""Test that people whom a prompt excludes get no value, and that all others do.

A text encoder that reads "do not include people, both women and men" draws people.
"""

import time

import pytest

from vldebias.wording import balance_prompts

NOBODY = [
    "an empty gym; athletes must not be visible",
    "library at night, make sure no students appear",
    "a courtroom without a judge or lawyers",
    "a bakery, but please no bakers",
    "a bus stop, nobody waiting, no passengers",
    "city skyline, without any pedestrians, cars or text",
    "cafe terrace. I do not want any waiters or guests",
    "an operating room. Surgeons should be left out.",
    "an office, devoid of employees",
    "empty stadium, free of spectators and players",
    "hotel lobby, exclude: guests, receptionist, text",
    "Avoid: people, watermark",
    "studio, photographer is absent",
    "a lab; scientists not included",
    "a farmhouse kitchen, farmer not visible",
    "ballet studio, the dancers have all gone",
    "a construction site on Sunday, the workers are away",
    "a street after the parade, the musicians left hours ago",
    "village square, with the farmers gone",
    "a theatre with no actors on stage",
    "show only the chair, not the customer",
    "a beach, not a single tourist",
    "a harbour, don't put any sailors on the deck",
    "a shop window, never include a seller",
    "Please leave out the driver, only show the car",
    "Only the uniform, not the nurse",
    "a cockpit with the pilot missing",
    "a laboratory - no scientists, please",
    "a school hallway that contains no students",
    "a hospital bed with no patient",
    "ward with neither doctors nor patients",
    "kitchen interior\n## Negative\ndoctor, nurse, patient",
    "kitchen (chef:-1.2)",
    "restaurant::2 waiter::-1",
    "a mountain road, people: none",
    "living room, humans = 0",
    "reception desk, the receptionist isn't there",
    "an orchestra hall. The conductor hasn't arrived.",
    "a pool where no swimmer can be seen",
    "train cabin, passengers removed",
    "stock photo of an office, exclude employees and managers",
    "a market hall before opening, the vendors haven't shown up",
    "there should not be any tourists",
    "there must be no soldiers in the scene",
    "I'd rather not see any hikers",
    "can you make sure there isn't a fisherman or a sailor",
    "forest path, hikers nowhere in sight",
    "a temple, monks are forbidden",
    "a playground. There are no children here.",
    "a football pitch, unoccupied, not one player",
    "Nobody should be on the bench, especially no child",
    "an unmanned kiosk, clerk out of frame",
    "a barn, get rid of the farmer",
    "eine Werkstatt ohne Maler oder Tischler",
    "Eine leere Bibliothek, es sind keine Studenten zu sehen",
    "Ein Büro, bitte keine Mitarbeiter",
    "Eine Straße, zeige nicht die Touristen",
    "Ein OP-Saal, Ärzte fehlen",
    "Une plage, pas de touristes",
    "Une cuisine sans cuisiniers ni serveurs",
    "Un bureau, ne pas inclure les employés",
    "Une gare où il n'y a aucun voyageur",
    "una playa, nada de turistas",
    "una oficina sin empleados",
    "un aula, que no aparezcan alumnos",
    "una cocina, no pongas al cocinero",
    "una spiaggia, niente turisti",
    "un ufficio senza impiegati",
    "un'aula in cui non ci sono studenti",
    "uma cozinha sem cozinheiro",
    "um escritório, nada de funcionários",
    "uma praia onde não há turistas",
    "пустой офис, сотрудников нет",
    "кухня, без повара",
    "класс, учеников не видно",
    "空无一人的办公室，没有员工",
    "一间教室，不要有学生",
    "厨房，不含厨师",
    "海滩，看不到游客",
    "誰もいないオフィス、社員なし",
    "厨房、シェフは描かない",
    "学生のいない教室",
    "직원이 없는 사무실",
    "요리사를 그리지 마",
    "관광객 없는 해변",
    "مكتب فارغ بلا موظفين",
    "مطبخ، لا ترسم الطباخ",
    "شاطئ لا يوجد فيه سياح",
    "a ship's bridge, captain not pictured",
    "a fire station, all firefighters are out on a call",
    "a salon with none of the hairdressers present",
    "a wedding hall before the guests arrive",
    "a cruise ship deck, the tourists went ashore",
    "eine Werkstatt, bitte den Mechaniker weglassen",
    "une cuisine sans le chef ni les serveurs",
    "una peluquería, sin mostrar al peluquero",
    "um consultório, o dentista não aparece",
    "мастерская, плотника не показывать",
]
SOMEBODY = [
    "a nurse before a window",
    "firefighters are out in the rain",
    "polka dot picture of a chef",
    "a hiker leaves the path out of curiosity",
    "two dancers, not an inch apart",
    "a nurse with no mask treating a patient",
    "a chef without a hat, a waiter behind him",
    "a doctor who never smiles at a patient",
    "a teacher avoiding a student",
    "a firefighter, no text, no watermark",
    "a runner, avoid blurry background",
    "a pilot who is not smiling",
    "a chef. Do not add text. A waiter serves the dish.",
    "a cook who left the army, portrait",
    "a dancer with left hand raised",
    "a hiker who has left the path",
    "a surgeon free of stress",
    "a plumber out of breath",
    "a baker, not a butcher",
    "a cyclist on an empty road",
    "a security guard in an abandoned factory",
    "a tennis player missing the ball",
    "a student who has gone bald",
    "a farmer and an absent-minded professor",
    "a lawyer removing a hat",
    "a barista who keeps the door open",
    "a librarian, keep the background out of focus",
    "a mechanic, leave space for text on the left",
    "a soldier hiding behind a wall",
    "a photographer, never boring, cinematic",
    "an engineer holding a sign that says do not enter",
    "a teacher in front of an empty classroom",
    "a detective, no hat, smoking",
    "a nurse at a desk, no other people",
    "a scientist, make it look real, don't crop the head",
    "Ein Arzt ohne Maske untersucht einen Patienten",
    "Eine Küche ohne Fenster, ein Koch am Herd",
    "un médecin sans masque dans un couloir",
    "una cocina sin ventanas, un cocinero prepara la cena",
    "un medico senza mascherina in corsia",
    "um cozinheiro sem chapéu",
    "врач без маски",
    "一位没有戴口罩的医生",
    "一位医生，不要文字",
    "マスクをしていない医者",
    "帽子のない料理人",
    "안경 없는 의사",
    "의사, 글자 없음",
    "طبيب بدون كمامة",
]

# One character, a pair and words, each repeated.
UNITS = ["\n", " ", "-", "a", "\u4e00", "\n ", ", ", "::", "no nurse ", "have left, ", "ein Arzt "]


@pytest.mark.parametrize("prompt", NOBODY)
def test_people_whom_a_prompt_excludes_get_no_value(prompt: str) -> None:
    assert balance_prompts([prompt] * 2, "gender", seed=0).prompts == [prompt] * 2


@pytest.mark.parametrize("prompt", SOMEBODY)
def test_people_get_a_value_if_the_prompt_excludes_something_else(prompt: str) -> None:
    assert prompt not in balance_prompts([prompt] * 2, "gender", seed=0).prompts


def _fastest(prompt: str) -> float:
    times = []
    for number in range(5):
        began = time.process_time()
        balance_prompts(f"{prompt} {number}", "gender", seed=0)  # a new prompt, which is not cached
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("unit", UNITS)
def test_a_prompt_of_twice_the_length_takes_about_twice_the_time(unit: str) -> None:
    """31 kB of line breaks used to take 40 s."""
    repeated = unit * (8000 // len(unit))
    balance_prompts(unit, "gender", seed=0)
    once = _fastest(f"a nurse {repeated}")
    assert _fastest(f"a nurse {repeated}{repeated}") <= max(2.5 * once, 0.1)
