"""Lints the chart and renders it with each of its value sets, by Helm's own engine.

usage: render.py CHART OUT

Writes OUT/<set>/<template> for each charts/weir/ci/<set>-values.yaml, and fails if a lint finding is
worse than information, a set does not render, or wrong values are taken.
"""

import pathlib
import sys

import helm_python as helm

# Values that must be refused, and what the message must name.
WRONG = [
    ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
    ({"settings": {"tc": "xdp"}}, "tc"),
    ({"settings": {"maxFlows": 1}}, "maxFlows"),
    ({"settings": {"healthzBindAddress": "10256"}}, "healthzBindAddress"),
    ({"paths": {"bpffs": "sys/fs/bpf"}}, "bpffs"),
    ({"metrics": {"serviceMonitr": {}}}, "serviceMonitr"),
    ({"kubeProxyConfig": {"import": {"enabled": True, "config": {}}}}, "config"),
    ({"metrics": {"serviceMonitor": {"enabled": True}}}, "metrics.service.enabled"),
    (
        {"kubeProxyConfig": {"config": {"mode": "ipvs"}, "import": {"enabled": True}}},
        "not both",
    ),
]


def namespace(values):
    imported = values.get("kubeProxyConfig", {}).get("import", {}).get("enabled")
    return "kube-system" if imported else "weir"


def main(chart_dir, out):
    faults = []
    # 1 is information, as Helm counts.
    for message in helm.lint(str(chart_dir), strict=True)["messages"]:
        print("lint:", message["path"], message["error"])
        if message["severity"] > 1:
            faults.append(f"lint: {message}")
    sets = sorted((chart_dir / "ci").glob("*-values.yaml"))
    if len(sets) < 5:
        faults.append("value sets are missing")
    with helm.Chart.load(str(chart_dir)) as chart:
        for path in sets:
            name = path.name.removesuffix("-values.yaml")
            values = helm.values_from_yaml(path.read_text())
            chart.validate_schema(values)
            rendered = chart.render(values, name="weir", namespace=namespace(values))
            for template, text in rendered.items():
                target = out / name / pathlib.Path(template).name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            print(f"rendered: {name}, {len(rendered)} templates")
        for values, named in WRONG:
            try:
                chart.validate_schema(values)
                chart.render(values, name="weir", namespace="kube-system")
            except helm.HelmError as error:
                if named not in str(error):
                    faults.append(f"{values}: the refusal does not name {named}: {error}")
            else:
                faults.append(f"{values} is taken")
        try:
            imported = {"kubeProxyConfig": {"import": {"enabled": True}}}
            chart.render(imported, name="weir", namespace="default")
        except helm.HelmError as error:
            if "kube-system" not in str(error):
                faults.append(f"import in another namespace: {error}")
        else:
            faults.append("import in another namespace is taken")
    for fault in faults:
        print("FAULT", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
