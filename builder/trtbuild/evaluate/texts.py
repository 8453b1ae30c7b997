"""A small built-in held-out set, written for this project: other topics, languages and code than the calibration texts."""

from __future__ import annotations

TEXTS: tuple[str, ...] = (
    "Beekeepers open a hive slowly. A little smoke at the entrance makes the workers fill themselves with honey, and a full bee is a calm "
    "bee. The frames hang side by side like files in a drawer; each is lifted straight up, turned once in the light, and put back exactly "
    "as it was. What matters is not the honey but the brood: a pattern without gaps says that the queen is healthy, while scattered cells "
    "mean trouble weeks before the colony shows it. Most visits end with nothing done at all, which is how it should be.",
    "The committee met for the third time in October. It noted that the bridge carries nineteen thousand vehicles a day, twice what it was "
    "designed for in 1958, and that the joints on the northern span have been replaced four times since. Two options remain. The first is "
    "to strengthen the existing arches and close one lane for fourteen months. The second is a new crossing eighty metres upstream, which "
    "costs more but keeps the old road open while it is built. Members asked for figures on noise before the vote.",
    "Q: How do I keep bread from going stale?\nA: Staling is not drying. As bread cools, its starch slowly crystallises and pushes water "
    "out, and this happens fastest just above freezing, so the refrigerator is the worst place. Keep the loaf in paper or cloth at room "
    "temperature for two days, then slice and freeze the rest. A stale slice comes back to life in a hot oven, because heat melts the "
    "crystals again.\nQ: And does that work twice?\nA: Once, and only for an hour or so.",
    'from collections import Counter, deque\n\n\ndef topological_order(edges):\n    """Return the nodes so that every edge points forward; '
    'raise if there is a cycle."""\n    waiting = Counter(target for _, target in edges)\n    following = {}\n    for source, target in '
    "edges:\n        following.setdefault(source, []).append(target)\n        following.setdefault(target, [])\n    ready = deque(node for "
    "node in following if waiting[node] == 0)\n    order = []\n    while ready:\n        node = ready.popleft()\n        order.append(node)\n"
    "        for target in following[node]:\n            waiting[target] -= 1\n            if waiting[target] == 0:\n                "
    'ready.append(target)\n    if len(order) < len(following):\n        raise ValueError("the graph has a cycle")\n    return order\n',
    "#include <stdio.h>\n#include <stdlib.h>\n\nstruct node { int key; struct node *next; };\n\nstatic struct node *push(struct node *head, int "
    'key)\n{\n    struct node *fresh = malloc(sizeof *fresh);\n    if (fresh == NULL) {\n        fprintf(stderr, "out of memory\\n");\n        '
    "exit(EXIT_FAILURE);\n    }\n    fresh->key = key;\n    fresh->next = head;\n    return fresh;\n}\n\nint main(void)\n{\n    struct node *list = "
    "NULL;\n    for (int i = 0; i < 10; i++)\n        list = push(list, i * i);\n    for (struct node *at = list; at != NULL; at = at->next)\n"
    '        printf("%d%s", at->key, at->next ? ", " : "\\n");\n    return 0;\n}\n',
    "Let n be an odd integer. Then n = 2k + 1 for some integer k, and n squared is 4k(k + 1) + 1. One of k and k + 1 is even, so 4k(k + 1) is "
    "divisible by 8, and n squared leaves remainder 1 when divided by 8. It follows that the sum of two odd squares leaves remainder 2, "
    "and since every even square leaves remainder 0 or 4, the sum of two odd squares is never a square itself.",
    "Als der Zug im Tunnel stehen blieb, sagte zuerst niemand etwas. Dann räusperte sich ein Mann mit einer Posaune im Koffer und fragte, ob "
    "jemand wisse, wie lange das dauern könne. Eine Lehrerin verteilte Mandarinen. Nach zwanzig Minuten kannte jeder die Geschichte der "
    "Posaune, nach vierzig spielte er sie, und als das Licht wieder anging, fanden es alle beinahe zu früh. Die Durchsage sprach von einer "
    "Störung im Betriebsablauf.",
    "Le fromager retourne chaque meule une fois par semaine, la frotte à l'eau salée et la repose sur sa planche d'épicéa. Au bout de six mois, "
    "la croûte sonne sous le marteau : un son plein annonce une pâte sans fissure. Il note tout dans un cahier dont les premières pages "
    "datent de son grand-père. « Le lait change avec l'herbe, dit-il, et l'herbe ne lit pas les recettes. »",
    "La sequía duró tres años. El embalse bajó tanto que volvió a verse el campanario del pueblo viejo, y la gente iba los domingos a mirarlo "
    "desde la orilla, como quien visita a un pariente. Cuando por fin llovió, nadie abrió el paraguas. O agricultor plantou feijão na mesma "
    "semana e disse que a terra tinha boa memória. Gli ulivi, che hanno radici profonde, non si erano accorti di nulla.",
    "В библиотеке пахло пылью и яблоками. Смотритель знал каждую книгу по корешку и никогда не пользовался каталогом. Зимою он топил печь "
    "и читал вслух тем, кто приходил греться. Ο παλιός χάρτης δείχνει ένα νησί που δεν υπάρχει πια. Stary zegar na wieży spóźnia się o siedem "
    "minut, więc całe miasto też się spóźnia.",
    "图书馆三楼靠窗的位置总是最先坐满。下雨的时候,雨点打在玻璃上,没有人说话。老师说,学习不是比谁快,而是比谁走得远。"
    "冬の朝、パン屋の窓だけが明るい。店主は五時に起きて、生地の温度を手で確かめる。오래된 다리 위에서는 강이 천천히 흐르는 것처럼 보인다. "
    "كان الصياد يعرف البحر كما يعرف يده. गाँव के बाहर एक पुराना बरगद है, जिसकी छाया में पंचायत बैठती है।",
    '{"order": 90317, "customer": {"name": "Ada Nowak", "city": "Gdańsk"}, "items": [{"sku": "LMP-20", "count": 2, "price": 34.5}, {"sku": '
    '"BLB-04", "count": 6, "price": 2.75}], "paid": true, "note": null}\n<?xml version="1.0"?>\n<route id="7"><stop minute="0">Harbour</stop>'
    '<stop minute="6">Market</stop><stop minute="15">Hospital</stop></route>\nname: nightly\non:\n  schedule: "15 3 * * *"\njobs:\n  - run: make '
    "clean all\n    timeout_minutes: 40\n",
    "System: You are a helpful assistant.\nUser: Summarise this in one sentence: The city council approved a budget that raises spending on "
    "parks by 12 % and cuts road works by 4 %, against the votes of the two members from the industrial district.\nAssistant: The council "
    "passed a budget that gives parks 12 % more and road works 4 % less, with both members from the industrial district voting against it.\n"
    "User: Now make it sound neutral and shorter.\nAssistant: The approved budget shifts money from roads to parks.",
    "When a star like the Sun runs out of hydrogen in its core, the core shrinks and heats up while the outer layers swell and cool. The star "
    "becomes a red giant, perhaps a hundred times wider than before. Helium then fuses to carbon and oxygen. In the end the outer layers "
    "drift away as a glowing shell, and what is left, a white dwarf the size of the Earth, cools for longer than the universe has existed.",
)
