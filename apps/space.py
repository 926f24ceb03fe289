"""The demo as a Hugging Face Space: see README.md beside it for what goes into its repository."""

from starlette.middleware import Middleware

from vldebias.cli.apps import page

HUB = ("https://huggingface.co", "https://*.huggingface.co")  # shows the page in a frame; no other site may

built, serving = page("demo.page"), page("serving")
demo = built.build_demo(page("demo.engine").Engine())

if __name__ == "__main__":
    demo.queue(max_size=64).launch(
        server_name="0.0.0.0",
        css=built.style(),
        theme=serving.theme(),
        app_kwargs={"middleware": [Middleware(serving.Headers, frames=HUB)]},
        max_file_size="1kb",
        ssr_mode=False,
        footer_links=[],
    )
