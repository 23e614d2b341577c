// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package patchbay_test checks the repository's laws: rules that a reviewer would have to check by
// hand, and costs that no reviewer would notice, such as a millisecond more for every container of
// a node.
package patchbay_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

const (
	module  = "github.com/patchbay-net/patchbay"
	program = module + "/cmd/patchbay"

	// maxProgramBytes is six of the pieces in which install writes the program, so that the kernel can cache each
	// in a large page (cli/installer.go, pieceSize). A process reads only what it touches, so bytes within the six cost
	// no call any time. A seventh piece is for everybody's disk and memory, so an ADR must say what it buys.
	maxProgramBytes = 6 << 21

	// maxStartAllocs bounds the allocations of all package initialisation before main: the
	// measured number plus a margin for a new Go release. Every plugin process pays for
	// each of them.
	maxStartAllocs = 260
)

const header = "// Copyright the Patchbay authors.\n// SPDX-License-Identifier: Apache-2.0\n"

// pkg is what `go list -json` prints for one of our packages.
type pkg struct {
	ImportPath, Dir, Doc               string
	Imports, TestImports, XTestImports []string
	GoFiles                            []string
	Deps                               []string
}

// path is the package below the module: "plugin/bridge".
func (p pkg) path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// list returns our packages as `go list` sees them; it runs once.
var list = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,Imports,TestImports,XTestImports,GoFiles,Deps", "work")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return pkgs, nil
		case err != nil:
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
})

func packages(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := list()
	if err != nil {
		t.Fatal(err)
	}
	return pkgs
}

// goFiles returns the path of every Go file, tests included.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestLicenceHeader(t *testing.T) {
	for _, path := range goFiles(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(text), header) {
			t.Errorf("%s: does not start with the licence header:\n%s", path, header)
		}
	}
}

func TestPackageDocs(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s: no package comment", p.ImportPath)
		}
	}
}

// layers lists which of our packages each of our packages may import; the first rule whose path
// matches counts. Imports point downwards. "internal/..." is the ground: a row that may import one of joins names it.
var layers = []struct {
	path    string // a package, or "x/..." for everything below
	may     []string
	because string
}{
	{"spec", []string{"internal/lightjson"}, "spec is pure: anybody can take it without taking us"},
	{"netns", []string{"internal/flock"}, "netns stands alone, but locks as all do"},
	{"internal/flock", nil, "everybody locks files, also netns"},
	{"internal/prefix", nil, "arithmetic of addresses, which policy uses too"},
	{"internal/l4", nil, "names of protocols, for policies and Services"},
	{"internal/owner", nil, "a mark is a hash of three names"},
	{"internal/paths", nil, "where things live is known to all"},
	{"invoke/...", []string{"spec", "invoke/..."}, "invoke works on bytes and calls, whoever answers"},
	{"internal/kernel", []string{"plugin", "spec", "netns", "ipam", "internal/..."}, "it joins the SDK's session to the kernel, and knows no plugin"},
	{"internal/traces", []string{"ipam", "spec", "internal/..."}, "it reads for kernel and for commands, and knows no plugin"},
	{"internal/endpoint", []string{"plugin", "internal/kernel", "spec", "netns", "invoke", "internal/..."}, "it is what bridge and ptp share, and knows neither"},
	{"internal/policy", []string{"internal/l4", "internal/prefix"}, "policy is pure: state in, program out, for the agent, the plugin and patchbay why"},
	{"internal/policy/mirror", []string{"internal/policy", "internal/..."}, "the agent writes it and an ADD reads it, and it knows neither"},
	{"internal/policy/enforce", []string{"internal/policy", "spec", "internal/..."}, "it loads what policy compiled, and knows neither agent nor plugin"},
	{"internal/npwg", []string{"internal/lightjson", "spec"}, "what a pod's further networks are is pure: annotation and results in, plan and status out"},
	{"internal/sealed", nil, "a frame of bytes"},
	{"internal/services", []string{"internal/l4"}, "services is pure: state in, program out, for the agent and patchbay why"},
	{"internal/services/enforce", []string{"internal/services", "internal/..."}, "it loads what services compiled, and does not know the agent"},
	{"internal/services/saved", []string{"internal/services", "internal/..."}, "the agent writes it and commands read it, and it knows neither"},
	{"internal/test/servicetest", []string{"internal/test/draw"}, "an oracle shares no code with what it judges"},
	{"internal/test/reftest", nil, "it only finds and builds programs"},
	{"internal/test/chaintest", []string{"chain", "invoke/...", "spec", "internal/...", "internal/test/..."}, "a runtime and its calls, for tests of chain"},
	{"internal/test/...", []string{"spec", "netns", "invoke", "plugin", "plugin/plugintest", "internal/...", "internal/kernel", "internal/endpoint", "internal/policy", "internal/test/..."}, "what tests share; in no program"},
	{"internal/...", []string{"spec", "netns", "internal/..."}, "internal is the ground: nothing in it looks up"},
	{"ipam/...", []string{"spec", "netns", "internal/...", "ipam/..."}, "a store knows nothing of plugins"},
	{"plugin", []string{"spec", "invoke/...", "netns", "internal/..."}, "the SDK knows no plugin"},
	{"plugin/plugintest", []string{"plugin", "conformance/...", "spec", "netns", "invoke", "internal/...", "internal/traces", "internal/test/draw", "internal/test/nettest/..."}, "the contract of every plugin is a test"},
	{"plugin/all", []string{"plugin/..."}, "the list is only a list"},
	{"plugin/networks", []string{"chain", "plugin", "internal/kernel", "plugin/plugintest", "invoke", "spec", "internal/..."}, "it reads a definition's list as a runtime does, and knows no other plugin"},
	{"plugin/policy", []string{"plugin", "internal/kernel", "plugin/plugintest", "internal/policy", "internal/policy/enforce", "internal/policy/mirror", "spec", "internal/..."}, "it joins an ADD to what the agent decided, and knows no other plugin"},
	{"plugin/...", []string{"spec", "invoke/...", "netns", "ipam", "internal/...", "internal/kernel", "internal/endpoint", "plugin", "plugin/..."}, "a plugin is driven by a chain, it does not drive one"},
	{"chain/...", []string{"spec", "invoke/...", "internal/...", "chain/..."}, "a runtime that only execs must link no plugin"},
	{"conformance/...", []string{"spec", "invoke", "netns", "internal/apart", "internal/nl", "internal/terminal", "internal/test/nettest/...", "conformance/..."}, "the suite drives plugins from outside, whoever made them"},
	{"daemons/cnm", nil, "the protocol of Docker's drivers stands alone"},
	{"daemons/cnm/...", []string{"daemons/cnm", "daemons/cnm/...", "plugin", "internal/kernel", "internal/endpoint", "spec", "netns", "invoke/...", "internal/..."}, "plugins too, on a protocol that costs HTTP"},
	{"daemons/dhcp/...", []string{"chain", "spec", "netns", "internal/...", "daemons/dhcp/..."}, "the keeper of leases knows no plugin"},
	{"daemons/hosts/store", nil, "what hosts know of each other, whoever keeps it"},
	{"daemons/hosts/store/etcd", []string{"daemons/hosts/store", "internal/..."}, "it knows the types it stores, and not what they are for"},
	{"daemons/hosts/...", []string{"daemons/hosts/...", "daemons/docker/state", "daemons/internal/...", "ipam", "spec", "netns", "internal/..."}, "it prepares what others attach to, and attaches nothing"},
	{"daemons/node/plan", []string{"internal/..."}, "it computes for the agent, and knows no API server"},
	{"daemons/node/policies", []string{"internal/policy", "daemons/internal/burst", "daemons/internal/copies", "internal/..."}, "it makes states of events, and knows neither API server nor kernel"},
	{"daemons/node/services", []string{"internal/services", "internal/services/saved", "daemons/internal/burst", "daemons/internal/copies", "internal/..."}, "as daemons/node/policies, for Services"},
	{"daemons/node/lan/...", []string{"daemons/node/plan", "daemons/node/services", "internal/services", "daemons/internal/copies", "daemons/internal/losses", "netns", "internal/..."}, "as daemons/node/policies, for addresses of load balancers; its announcer knows links, and nothing of the API"},
	{"daemons/node/networks", []string{"daemons/internal/copies", "internal/..."}, "as daemons/node/policies, for further networks of pods"},
	{"daemons/node/...", []string{"daemons/node/plan", "daemons/node/policies", "daemons/node/services", "daemons/node/networks", "daemons/node/lan/...", "internal/policy/...", "internal/services/...", "daemons/internal/...", "spec", "internal/..."}, "it prepares what a container runtime attaches pods to, and attaches nothing"},
	{"daemons/docker/...", []string{"chain", "daemons/cnm", "invoke", "ipam", "netns", "plugin", "internal/kernel", "spec", "daemons/docker/...", "internal/..."}, "a runtime: Docker's networks are lists of plugins to it"},
	{"daemons/probe", []string{"netns", "internal/..."}, "it sends one packet and reads the kernel, and knows no plugin"},
	{"daemons/internal/...", []string{"daemons/internal/...", "internal/..."}, "what the agents of hosts and nodes share; it knows neither"},
	{"daemons/dist/...", nil, "files to install"},
	{"daemons/cli", []string{"daemons/dhcp/...", "daemons/cnm", "daemons/docker/...", "daemons/hosts/...", "daemons/node/...", "daemons/dist/...", "daemons/probe", "daemons/internal/...", "internal/..."}, "the commands of patchbayd start its services"},
	{"cli/gc", onNode, "a command for a whole node stands beside the commands, above plugins and chains"},
	{"cli/doctor", append([]string{"cli/gc", "cli/netfile", "plugin/hostlocal", "internal/policy/...", "internal/services/..."}, onNode...), "as cli/gc; it reads ranges as host-local does, and policies and Services as the agent wrote them"},
	{"cli/netavark", []string{"chain", "cli/netfile", "spec"}, "a runtime: podman's networks are lists of plugins to it"},
	{"cli/netfile", onNode, "as cli/gc: it makes and removes networks"},
	{"cli/...", []string{"..."}, "the commands may use everything"},
	{"daemons/test/...", []string{"..."}, "a test may use everything"},
	{"daemons/cmd/...", []string{"daemons/cli/...", "daemons/cnm/...", "cli", "plugin", "internal/..."}, "a program is its command line, or its plugins"},
	{"test/...", []string{"..."}, "a test may use everything"},
	{"cmd/patchbay-conformance", []string{"conformance/command"}, "a program is its command line"},
	{"cmd/...", []string{"cli/...", "plugin", "plugin/all", "plugin/dhcp", "spec", "internal/..."}, "a program is its command line, or its plugins"},
	{"examples/...", []string{"chain", "invoke", "plugin/...", "spec", "netns"}, "what a user of the library may import"},
}

// joins lists the packages below internal that stand on the SDK, or that tests, policies and Services have for themselves.
var joins = []string{"internal/kernel", "internal/endpoint", "internal/policy/...", "internal/services/...", "internal/test/..."}

// may reports whether a row of layers allows an import.
func may(row []string, imp string) bool {
	joined := slices.ContainsFunc(joins, func(j string) bool { return matches(j, imp) })
	return slices.ContainsFunc(row, func(m string) bool { return matches(m, imp) && (!joined || m != "internal/...") })
}

// onNode lists the packages that a command for a whole node may import.
var onNode = []string{"chain", "plugin", "internal/kernel", "internal/endpoint", "spec", "netns", "ipam", "invoke/...", "internal/..."}

func TestLayers(t *testing.T) {
	for _, p := range packages(t) {
		for _, l := range layers {
			if !matches(l.path, p.path()) {
				continue
			}
			for _, imp := range p.Imports {
				rest, ours := strings.CutPrefix(imp, module+"/")
				if ours && !may(l.may, rest) {
					t.Errorf("%s imports %s: %s", p.path(), rest, l.because)
				}
			}
			break
		}
	}
}

// forTests lists the directories whose packages are linked into tests and tools only.
var forTests = []string{"test/", "internal/test/", "daemons/test/"}

// forTests reports whether a package is linked into tests and tools only.
func (p pkg) forTests() bool {
	return slices.ContainsFunc(forTests, func(dir string) bool { return strings.HasPrefix(p.path()+"/", dir) })
}

func matches(pattern, path string) bool {
	base, all := strings.CutSuffix(pattern, "...")
	if !all {
		return pattern == path
	}
	return strings.HasPrefix(path+"/", base)
}

// The peers are the programs that we are measured against: only tests and tools may import
// them.
func TestProductsDoNotImportThePeers(t *testing.T) {
	for _, p := range packages(t) {
		if p.forTests() {
			continue
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, "github.com/containernetworking/") {
				t.Errorf("%s imports %s: the reference is our peer, not our foundation", p.path(), imp)
			}
		}
	}
}

// forbiddenImport is the path of a forbidden package, or the beginning of such paths, with the
// reason.
type forbiddenImport struct{ prefix, because string }

// forbidden lists the packages that must not be linked into the program.
var forbidden = []forbiddenImport{
	{"net/http", "0.35 ms and 4 MB for every plugin process"},
	{"crypto/tls", "comes with net/http; a plugin speaks to the kernel"},
	{"text/template", "reflection keeps every method alive: megabytes"},
	{"html/template", "as text/template"},
	{"net/rpc", "pulls net/http"},
	{"expvar", "pulls net/http"},
	{"k8s.io/", "5.4 ms and 33 MB for every plugin process"},
	{"sigs.k8s.io/", "as k8s.io; knftables compiles regexps before main"},
	{"google.golang.org/", "grpc and protobuf fill registries before main"},
	{"go.etcd.io/", "pulls grpc"},
	{"github.com/containernetworking/", "our peer"},
	{"github.com/prometheus/", "metrics belong to a daemon"},
	{"github.com/spf13/", "pulls text/template"},
	{"testing", "test code in the product"},
	{module + "/daemons/cnm", "speaks HTTP: daemons/cmd/patchbay-cnm is for it"},
	{module + "/daemons/docker", "speaks HTTP: patchbayd is for it"},
	{module + "/test", "a test helper"},
	{module + "/internal/test", "a test helper"},
	{module + "/plugin/plugintest", "a test helper"},
}

func TestForbiddenImports(t *testing.T) {
	refuseImports(t, program, forbidden)
}

// TestForbiddenImportsOfDrivers: patchbay-cnm may link HTTP and TLS, because it exists to speak
// them, but no other package of the list.
func TestForbiddenImportsOfDrivers(t *testing.T) {
	may := []string{"net/http", "crypto/tls", module + "/daemons/cnm"}
	refuseImports(t, module+"/daemons/cmd/patchbay-cnm", slices.DeleteFunc(slices.Clone(forbidden), func(f forbiddenImport) bool {
		return slices.Contains(may, f.prefix)
	}))
}

// Only the agent of a Kubernetes node imports client-go, so only patchbayd links it.
func TestKubernetesIsTheAgents(t *testing.T) {
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, "k8s.io/") && p.path() != "daemons/node" && !p.forTests() {
				t.Errorf("%s imports %s: only daemons/node may", p.path(), imp)
			}
		}
	}
}

// What other projects import to write a runtime, a plugin or an IPAM plugin links no library of the kernel's network: it
// would come with modules that they do not need.
func TestLibraryLinksNoNetlink(t *testing.T) {
	for _, name := range []string{"chain", "plugin", "ipam", "netns", "invoke", "spec"} {
		refuseImports(t, module+"/"+name, []forbiddenImport{
			{"github.com/vishvananda/", "netlink is for the plugins (internal/kernel)"},
			{"github.com/mdlayher/", "as vishvananda"},
			{"github.com/google/nftables", "the firewall is for the plugins (internal/kernel)"},
			{"regexp", "0.2 ms for every plugin process that compiles one before main"},
		})
		if name != "cnm" {
			refuseImports(t, module+"/"+name, []forbiddenImport{{"net/http", "as in patchbay"}})
		}
	}
}

// Only cmd/patchbay opens the door to the process that stays. A program made with our SDK has neither the routine in
// assembly nor the server (docs/resident.md).
func TestHandoverIsThePrograms(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains(p.Deps, module+"/internal/handover") && p.ImportPath != program && !p.forTests() {
			t.Errorf("%s links internal/handover: only cmd/patchbay may", p.path())
		}
	}
}

func refuseImports(t *testing.T, program string, list []forbiddenImport) {
	t.Helper()
	for _, dep := range linked(t, program) {
		for _, f := range list {
			if matches(strings.TrimSuffix(f.prefix, "/")+"/...", dep) {
				t.Errorf("%s links %s: %s; who imports it: go mod why -m, or go list -f '{{.ImportPath}} {{.Imports}}' -deps", program, dep, f.because)
			}
		}
	}
}

// linked returns the import path of every package in a program.
func linked(t *testing.T, program string) []string {
	t.Helper()
	for _, p := range packages(t) {
		if p.ImportPath == program {
			return append(p.Deps, program)
		}
	}
	t.Fatalf("no package %s", program)
	return nil
}

// Code that runs before main costs time in every plugin process, so our packages have none.
func TestNothingBeforeMain(t *testing.T) {
	deps := linked(t, program)
	for _, p := range packages(t) {
		if !slices.Contains(deps, p.ImportPath) {
			continue
		}
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range file.Decls {
				checkDeclaration(t, set, decl)
			}
		}
	}
}

func checkDeclaration(t *testing.T, set *token.FileSet, decl ast.Decl) {
	t.Helper()
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Name.Name == "init" {
			t.Errorf("%s: init runs in every plugin process", set.Position(d.Pos()))
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok && d.Tok == token.VAR {
				for _, value := range v.Values {
					checkValue(t, set, value)
				}
			}
		}
	}
}

// checkValue refuses values of package variables that are computed before main. It ignores
// function literals: their bodies run later.
func checkValue(t *testing.T, set *token.FileSet, value ast.Expr) {
	t.Helper()
	ast.Inspect(value, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.MapType:
			t.Errorf("%s: a package-level map is filled in every plugin process; use a switch or an array", set.Position(n.Pos()))
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && (x.Name == "regexp" || x.Name == "template") {
				t.Errorf("%s: a package-level %s is compiled in every plugin process; write it by hand or use sync.OnceValue", set.Position(n.Pos()), x.Name)
			}
		}
		return true
	})
}

// The Go runtime prints which packages it initialises. None of our packages may be among them, and
// the libraries have a budget.
func TestStartBudget(t *testing.T) {
	bin, err := reftest.Program("patchbay")
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(bin); err != nil || fi.Size() > maxProgramBytes {
		t.Errorf("the program is %d bytes (%v), promised are %d at most", fi.Size(), err, int(maxProgramBytes))
	}
	cmd := exec.Command(bin)
	cmd.Args[0] = "loopback"
	cmd.Env = []string{"GODEBUG=inittrace=1", "CNI_COMMAND=VERSION"}
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		t.Fatalf("VERSION: %v\n%s", err, &trace)
	}
	total := 0
	for lines := bufio.NewScanner(&trace); lines.Scan(); {
		f := strings.Fields(lines.Text()) // init PKG @0.1 ms, 0.01 ms clock, 24 bytes, 2 allocs
		if len(f) != 11 || f[0] != "init" {
			continue
		}
		if strings.HasPrefix(f[1], module) {
			t.Errorf("%s does work before main: %s", f[1], lines.Text())
		}
		n, err := strconv.Atoi(f[9])
		if err != nil {
			t.Fatalf("read %q: %v", lines.Text(), err)
		}
		total += n
	}
	t.Logf("%d allocations before main", total)
	if total == 0 || total > maxStartAllocs {
		t.Errorf("%d allocations before main, budget 1 to %d:\n%s", total, maxStartAllocs, trace.String())
	}
}
