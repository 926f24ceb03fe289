"""The demo as a Hugging Face Space: see README.md beside it for what goes into its repository."""

from starlette.middleware import Middleware

from vldebias.cli.apps import page

HUB = ("https://huggingface.co", "https://*.huggingface.co")  # shows the page in a frame; no other site may

compare, serving = page("compare.page"), page("serving")
demo = compare.build_demo(page("compare.engine").Engine())

if __name__ == "__main__":
    demo.queue(max_size=64).launch(
        server_name="0.0.0.0",
        css=compare.style(),
        theme=serving.theme(),
        app_kwargs={"middleware": [Middleware(serving.Headers, frames=HUB)]},
        max_file_size="10mb",
        ssr_mode=False,
        footer_links=[],
    )
