"""A server that answers as the Hugging Face hub does to who uploads a model: its public HTTP
interface, as far as `create_repo` and `upload_folder` ask it, with files kept in memory."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_tests"


class HubServer(ThreadingHTTPServer):
    """Knows one token, of the user `ada`, who may write for the organisation `lab`, too."""

    def __init__(self, role: str = "write") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.role = role
        self.repos: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: HubServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass

    def do_GET(self) -> None:
        self.server.asked.append(f"GET {self.path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._say(401, {"error": "Invalid credentials"})
        elif self.path == "/api/whoami-v2":
            token = {"displayName": "tests", "role": self.server.role}
            who = {"type": "user", "name": "ada", "orgs": [{"name": "lab"}]}
            self._say(200, {**who, "auth": {"type": "access_token", "accessToken": token}})
        elif self.path.startswith("/api/models/"):
            name = "/".join(self.path.split("?")[0].split("/")[3:5])
            files = self.server.repos[name]
            if "/tree/" in self.path:
                rows = [{"type": "file", "path": p, "size": len(b)} for p, b in files.items()]
                self._say(200, [{**row, "oid": "0" * 40} for row in rows])
            else:
                self._say(200, {"id": name, "sha": "0" * 40, "siblings": []})
        else:
            self._say(404, {"error": "not found"})

    def do_POST(self) -> None:
        self.server.asked.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization") or "ada"
            self.server.repos.setdefault(f"{owner}/{asked['name']}", {})
            self._say(200, {"url": f"{self.server.address}/{owner}/{asked['name']}"})
        elif self.path == "/api/validate-yaml":
            text = json.loads(body)["content"]
            bad = [] if text.startswith("---\n") else [{"message": "there is no header"}]
            self._say(400 if bad else 200, {"errors": bad, "warnings": []})
        elif "/preupload/" in self.path:
            files = [each["path"] for each in json.loads(body)["files"]]
            kept = {"uploadMode": "regular", "shouldIgnore": False}
            self._say(200, {"files": [{"path": path, **kept} for path in files]})
        elif "/commit/" in self.path:
            name = "/".join(self.path.split("/")[3:5])
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.server.repos[name][value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del self.server.repos[name][value["path"]]
            url = f"{self.server.address}/{name}/commit/{'1' * 40}"
            self._say(200, {"commitUrl": url, "commitOid": "1" * 40, "success": True})
        else:
            self._say(404, {"error": "not found"})

    def _say(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
