"""A small built-in calibration set: prose, dialogue, code, data and several scripts, written for this project."""

from __future__ import annotations

TEXTS: tuple[str, ...] = (
    "The harbour wakes before the town does. Ropes creak, a diesel engine coughs twice and settles, and someone on the quay counts "
    "crates out loud so that nobody has to count them again. By seven the fog has lifted far enough to show the lighthouse, and the "
    "first ferry slides out between the moles with eleven passengers, two bicycles and a dog that refuses to look at the water.",
    "To change a flat tyre, first find level ground and pull the handbrake. Loosen the nuts by half a turn while the wheel still "
    "touches the road. Raise the car until the tyre hangs free, take off the nuts, swap the wheels, and tighten the nuts crosswise. "
    "Lower the car and tighten them once more. Check the pressure of the spare as soon as you can.",
    "Question: What is the capital of Australia, and why do many people answer Sydney?\nAnswer: The capital is Canberra. Sydney is the "
    "largest and best known city, so it is often taken for the capital; Canberra was founded as a compromise between Sydney and "
    "Melbourne in 1913.",
    'def moving_average(values, window):\n    """Return the mean of each run of `window` values."""\n    if window < 1:\n'
    '        raise ValueError(f"window must be positive, got {window}")\n    total = sum(values[:window])\n    result = [total / window]\n'
    "    for old, new in zip(values, values[window:]):\n        total += new - old\n        result.append(total / window)\n"
    "    return result\n",
    "A train leaves at 09:40 and travels 168 km at 96 km/h. It then waits 12 minutes and covers the remaining 84 km at 70 km/h. The "
    "first part takes 168 / 96 = 1.75 hours, which is 1 h 45 min, so it arrives at 11:25. It leaves again at 11:37, needs 84 / 70 = 1.2 "
    "hours, and reaches its destination at 12:49.",
    "User: My order 48213 arrived with the wrong cable. Can I swap it?\nAgent: I am sorry about that. I can send the right one today. "
    "Is it the two metre USB-C cable that you wanted?\nUser: Yes, the black one, please.\nAgent: Done. It ships this afternoon, and you "
    "may keep the other one.\nUser: Thank you, that was quick!",
    '{"sensor": "roof-3", "readings": [{"t": 1712.5, "celsius": -3.25, "ok": true}, {"t": 1713.0, "celsius": null, "ok": '
    'false}], "unit": "s"}\nSELECT name, COUNT(*) AS visits FROM guests WHERE arrived >= \'2021-03-01\' GROUP BY name HAVING COUNT(*) > 2 '
    "ORDER BY visits DESC;",
    "Der Garten liegt hinter dem Haus, und im Sommer riecht er nach Minze und nassem Holz. Die Nachbarin bringt manchmal Kirschen "
    "vorbei. El mercado abre a las ocho; los pescadores ya han vendido casi todo cuando llegan los turistas. La bibliothèque reste "
    "ouverte jusqu'à minuit pendant les examens, et l'on y entend surtout les pages qui tournent.",
    "北京的秋天很短,但是天空特别高。我们早上骑车去湖边,看老人们打太极拳。日本の鉄道は時間に正確で、旅行者にも分かりやすい。서울의 골목에는 작은 카페가 많다. "
    "Москва просыпается рано, и первые поезда метро уже полны. يبدأ اليوم في السوق قبل شروق الشمس.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. In the light reactions, chlorophyll absorbs photons and "
    "the energy drives electrons along a chain of proteins, which pumps protons across a membrane. The gradient powers ATP synthase. In "
    "the Calvin cycle the enzyme RuBisCO fixes carbon, and ATP and NADPH pay for building the sugar.",
    "# Release notes\n\n## 2.4.0\n\n- **Faster start**: the index is read lazily (#512).\n- Fixed a crash when a path holds `%20`.\n- "
    "Deprecated: `--legacy-mode`; use `--mode=compat`.\n\n| size | before | after |\n|-----:|-------:|------:|\n| 1 MB | 14 ms | 9 ms |\n"
    "| 1 GB | 8.1 s | 2.7 s |\n",
    'My grandmother kept every letter she ever received, sorted by colour of ink. "Blue people are honest," she would say, "and green '
    'people want something." When I asked about the single one in red, she laughed until she had to sit down. 😀 "That," she said, '
    '"was from the tax office." 🙂❤️🎉',
)
